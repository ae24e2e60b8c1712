"""Tensors on torch's meta device: shapes that can be computed with, without numbers or an address.

Code that looks at a number, or asks whether two tensors lie in one place, asks here, so that it
runs on shapes alone as well; a dry run, as any rank of any world, is made of them. Lesson 00.
"""

from __future__ import annotations

import torch
from torch import Tensor, UntypedStorage


def numbers(x: Tensor, without: object):
    """A tensor's numbers as Python's own: nested lists, of a tensor without dims the number itself;
    `without` where there are none."""
    return without if x.is_meta else x.tolist()


def begins_at(x: Tensor) -> tuple[str, int]:
    """The same for two tensors whose first elements lie in one place, and for no others."""
    if x.is_meta:
        return f"storage {x.untyped_storage()._cdata}", x.storage_offset() * x.element_size()
    return "", x.data_ptr()


def memory_key(storage: UntypedStorage) -> tuple[str, int]:
    """The same for two storages that are one memory (a numpy array wrapped twice, say)."""
    if storage.device.type == "meta":  # all of them are at address 0
        return "meta", storage._cdata
    return str(storage.device), storage.data_ptr()


def readable(device: torch.device) -> torch.device:
    """Where to put numbers that are read again: where the rank computes, and never on meta."""
    return torch.device("cpu") if device.type == "meta" else device


def host_of(device: torch.device) -> torch.device:
    """What the host's memory is for a rank that computes on `device`: the CPU's, or as empty as its
    own."""
    return device if device.type == "meta" else torch.device("cpu")
