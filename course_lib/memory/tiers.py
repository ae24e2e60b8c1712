"""The three places where a rank can keep bytes: device, host, disk.

On a GPU rank a tensor's device distinguishes the first two. On a CPU rank both are the same memory,
so code that offloads declares the host with `tier`. Lesson 12 derives the benefit of each tier.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import UntypedStorage
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from course_lib.collectives.call import device_of
from course_lib.ledger.torch_calls import LightMode
from course_lib.memory.storages import storages

TIERS = ("device", "host", "disk")
_MARK = "_course_lib_tier"  # kept on the storage itself, so it ends with the memory


def rank_computes_on() -> str:
    """Return the device type whose memory is this rank's "device" tier by default."""
    if dist.is_available() and dist.is_initialized():
        return device_of(dist.group.WORLD).type
    return "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu"


def checked(name: str) -> str:
    """Return `name` unchanged, or raise if it is not a tier."""
    if name not in TIERS:
        raise ValueError(f"there is no tier {name!r}; the tiers are {', '.join(TIERS)}")
    return name


def tier_of(storage: UntypedStorage, computes_on: str | None = None) -> str:
    """Return the tier of a storage from its mark, its file (disk) or its device. A rank that
    computes on meta, in a dry run, counts as a rank on a CPU."""
    marked = getattr(storage, _MARK, None)
    if marked is not None:
        return marked
    if storage.device.type == "cpu":
        if storage.filename is not None:
            return "disk"
        if (computes_on or rank_computes_on()) not in ("cpu", "meta"):
            return "host"
    return "device"


class tier(LightMode):
    """Assign allocations in the body to a tier, as in `with tier("host"):`; notify open budgets."""

    def __init__(self, name: str):
        super().__init__()
        self.name = checked(name)
        self._told: list[list[str]] = []

    def __enter__(self) -> tier:
        # The stack of modes is also set in autograd's threads, but a context variable would not be.
        self._told = [
            mode.making for mode in _get_current_dispatch_mode_stack() if hasattr(mode, "making")
        ]
        for making in self._told:
            making.append(self.name)
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        for making in self._told:
            making.pop()
        super().__exit__(*exception)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # DTensor and similar unwrap first; their inner operations count
        # `lift_fresh`, the end of `torch.tensor(data)`, gets its new tensor as an argument.
        made = func._schema.name == "aten::lift_fresh"
        given = {} if made else {s._cdata for s in storages((args, kwargs), meta=True)}
        result = func(*args, **(kwargs or {}))
        for storage in storages(result, meta=True):
            if storage._cdata not in given:
                setattr(storage, _MARK, self.name)
        return result
