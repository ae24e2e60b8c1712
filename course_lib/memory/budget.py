"""Budgets that limit a rank's bytes on its device, its host and its disk.

An allocation that exceeds a budget raises an error, as on a GPU that is too small, so a failure to
shard becomes visible. Lesson 09 trains under a budget; lesson 12 tries remedies one after another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import UntypedStorage
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from course_lib.memory.formatting import in_bytes, this_rank
from course_lib.memory.lifetimes import Life, StorageWatch
from course_lib.memory.storages import alive
from course_lib.memory.tiers import TIERS, checked

_REMEDIES = {
    "device": "Use less at once (free unused tensors, shard more, a smaller batch) "
    "or move some of it to the host.",
    "host": "Keep fewer states on the host, shard them over more ranks, or move some to disk.",
    "disk": "Release the data that was read back, or shard the states over more ranks.",
}
# Operations that only allocate, so that their size is known before they touch the memory.
_MAKERS = {f"aten::{name}" for name in ("empty", "zeros", "ones", "full", "rand", "randn")}


class OutOfMemory(torch.OutOfMemoryError):
    """An error for an exceeded budget, with `tier`, `asked`, `in_use`, `limit` and `what`."""

    def __init__(self, tier: str, asked: int, in_use: int, limit: int, what: str):
        self.tier, self.asked, self.in_use, self.limit, self.what = tier, asked, in_use, limit, what
        super().__init__(
            f"{this_rank()} is out of memory on its {tier}: {what} asked for {in_bytes(asked)}, "
            f"{in_bytes(in_use)} are in use, and the budget is {in_bytes(limit)}, so "
            f"{in_bytes(in_use + asked - limit)} are too many. {_REMEDIES[tier]} "
            f"`held(model, optimizer, activations=True)` lists the memory in use."
        )


class Budget(StorageWatch):
    """An open budget, as returned by `budget(...)`, with `in_use` and `most` for each tier."""

    def __init__(
        self,
        limits: dict[str, int | None],
        existing: Iterable[UntypedStorage],
        computes_on: str | None,
        from_now: bool,
    ):
        for tier, limit in limits.items():
            if limit is not None and not (limit >= 0 and math.isfinite(limit)):
                raise ValueError(f"the {tier} budget is {limit} bytes, but it must be 0 or more")
        self.limits = {tier: None if n is None else int(n) for tier, n in limits.items()}
        self._from_now = from_now
        self._used = dict.fromkeys(TIERS, 0)
        self._most = dict.fromkeys(TIERS, 0)
        super().__init__(existing, computes_on=computes_on)

    def in_use(self, tier: str = "device") -> int:
        """Return the bytes in use in the tier now: tensors, and bytes passed to `charge`."""
        self.settle()
        return self._used[checked(tier)]

    def most(self, tier: str = "device") -> int:
        """Return the most bytes in use at once, including bytes from before the start."""
        self.settle()
        return self._most[checked(tier)]

    def __enter__(self) -> Budget:
        for tier, limit in self.limits.items():
            if limit is not None and self.in_use(tier) > limit:
                over = "memory from before the budget"
                raise OutOfMemory(tier, 0, self.in_use(tier), limit, over)
        super().__enter__()
        return self

    def check(self, tier: str, nbytes: int, what: str) -> None:
        """Raise if `nbytes` more would exceed the tier's budget."""
        limit = self.limits[tier]
        if limit is not None and self.in_use(tier) + nbytes > limit:
            raise OutOfMemory(tier, nbytes, self.in_use(tier), limit, what)

    # ---- called by the watch
    def born(self, life: Life) -> None:
        if self._from_now and life.origin != "made":
            return
        before = self._used[life.tier]
        self._take(life.tier, life.nbytes)
        limit = self.limits[life.tier]
        if life.origin == "made" and limit is not None and before + life.nbytes > limit:
            raise OutOfMemory(life.tier, life.nbytes, before, limit, life.what)

    def died(self, life: Life) -> None:
        if life.origin == "made" or not self._from_now:
            self._used[life.tier] -= life.nbytes

    def growing(self, storage: UntypedStorage, tier: str, extra: int) -> None:
        self.check(tier, extra, "storage.resize_")

    def _take(self, tier: str, nbytes: int) -> None:
        self._used[tier] += nbytes
        # A refused allocation was never in use.
        limit = self.limits[tier]
        if limit is None or self._used[tier] <= limit:
            self._most[tier] = max(self._most[tier], self._used[tier])

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        what = func._schema.name
        if what in _MAKERS and args:
            self._check_before(what, args[0], kwargs or {})
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except OutOfMemory as error:
            refusal = error
        # Raised without a traceback, because a notebook keeps the last one and its frames' objects.
        del args, kwargs
        raise refusal.with_traceback(None)

    def _check_before(self, what: str, shape: Iterable[int], options: dict) -> None:
        """Raise for a tensor of known size before its memory is touched."""
        place = torch.device(options.get("device") or "cpu")
        dtype = options.get("dtype") or torch.get_default_dtype()
        if (place.type == "meta" and not self._meta) or not isinstance(shape, (list, tuple)):
            return
        here = place.type == self._computes_on or self._meta
        tier = self.making[-1] if self.making else ("device" if here else "host")
        self.check(tier, math.prod(shape) * dtype.itemsize, what)


class Charge:
    """Bytes outside of tensors, such as a file on disk. Call `release()` once, or use `with`."""

    def __init__(self, tier: str, nbytes: int, what: str):
        open_now = [m for m in _get_current_dispatch_mode_stack() if isinstance(m, Budget)]
        for budget_ in open_now:
            budget_.check(tier, nbytes, what)
        for budget_ in open_now:
            budget_._take(tier, nbytes)
        self.tier, self.nbytes, self._charged = tier, nbytes, open_now

    def release(self) -> None:
        """Release the bytes; a second call does nothing."""
        for budget_ in self._charged:
            budget_._used[self.tier] -= self.nbytes
        self._charged = []

    def __enter__(self) -> Charge:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def charge(tier: str, nbytes: int, what: str = "a file") -> Charge:
    """Charge bytes to every open budget, or raise if one is exceeded. Release the result later."""
    if nbytes < 0:
        raise ValueError(f"{nbytes} bytes cannot be charged; call release() on the earlier charge")
    return Charge(checked(tier), int(nbytes), what)


def budget(
    *,
    device: int | None = None,
    host: int | None = None,
    disk: int | None = None,
    from_now: bool = False,
    computes_on: str | None = None,
) -> Budget:
    """Return a limit: `with budget(device=200_000_000):` raises `OutOfMemory` above it.

    It counts every tensor of the process, including earlier ones (with `from_now=True`, only
    tensors created inside). On a CPU rank all tensors are "device" except tensors created under
    `tier("host")` or marked; on a GPU rank CPU tensors are "host". Files count if code calls
    `charge("disk", …)`. The refused tensor is freed before the error arrives, but an in-place
    operation has already written. Memory that one operation allocates and frees is not seen (use
    `torch.cuda.set_per_process_memory_fraction` for CUDA). With `computes_on="meta"`, shapes of a
    dry run count as the memory that they represent.
    """
    limits = {"device": device, "host": host, "disk": disk}
    existing = () if from_now else alive(meta=computes_on == "meta")
    return Budget(limits, existing, computes_on, from_now)
