"""Support for tensors on torch's meta device, which have shapes but no values or address.

Code that reads values, or tests whether two tensors share memory, uses these functions, so that it
can run on shapes only, as in a dry run. Lesson 00.
"""

from __future__ import annotations

import torch
from torch import Tensor, UntypedStorage


def numbers(x: Tensor, without: object):
    """Return a tensor's values as nested lists of Python numbers, or as one number for a tensor
    without dims. Return `without` if it has no values."""
    return without if x.is_meta else x.tolist()


def begins_at(x: Tensor) -> tuple[str, int]:
    """Return a key that is equal for two tensors only if they start at the same address."""
    if x.is_meta:
        return f"storage {x.untyped_storage()._cdata}", x.storage_offset() * x.element_size()
    return "", x.data_ptr()


def memory_key(storage: UntypedStorage) -> tuple[str, int]:
    """Return a key that is equal for storages of the same memory, such as a numpy array's."""
    if storage.device.type == "meta":  # all of them are at address 0
        return "meta", storage._cdata
    return str(storage.device), storage.data_ptr()


def readable(device: torch.device) -> torch.device:
    """Return the device for values that are read later: the rank's device, or the CPU for meta."""
    return torch.device("cpu") if device.type == "meta" else device


def host_of(device: torch.device) -> torch.device:
    """Return the host device for a rank that computes on `device`: the CPU, or meta for meta."""
    return device if device.type == "meta" else torch.device("cpu")
