"""Budgets: a rank that may hold so many bytes on its device, its host, its disk, and no more.

The allocation that crosses a budget raises, as on a card that is too small; that makes "it shards"
something that can fail. Lesson 09 trains under one, lesson 12 walks the ladder of remedies with it.
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
    "device": "Hold less at once (free what is no longer needed, shard it, a smaller batch) "
    "or move some of it to the host.",
    "host": "Keep fewer states on the host, shard them over more ranks, or move some to disk.",
    "disk": "Release what was read back, or shard the states over more ranks.",
}
# Operations that only make memory: what they will take is known before they touch it.
_MAKERS = {f"aten::{name}" for name in ("empty", "zeros", "ones", "full", "rand", "randn")}


class OutOfMemory(torch.OutOfMemoryError):
    """A tier's budget was crossed. `tier`, `asked`, `in_use`, `limit` and `what` say how."""

    def __init__(self, tier: str, asked: int, in_use: int, limit: int, what: str):
        self.tier, self.asked, self.in_use, self.limit, self.what = tier, asked, in_use, limit, what
        super().__init__(
            f"{this_rank()} is out of memory on its {tier}: {what} asked for {in_bytes(asked)}, "
            f"{in_bytes(in_use)} are in use, and the budget is {in_bytes(limit)}: "
            f"{in_bytes(in_use + asked - limit)} too many. {_REMEDIES[tier]} "
            f"`held(model, optimizer, activations=True)` shows what is held."
        )


class Budget(StorageWatch):
    """What `budget(...)` opens. Ask it `in_use` and `most`, each for a tier."""

    def __init__(
        self,
        limits: dict[str, int | None],
        existing: Iterable[UntypedStorage],
        computes_on: str | None,
        from_now: bool,
    ):
        for tier, limit in limits.items():
            if limit is not None and not (limit >= 0 and math.isfinite(limit)):
                raise ValueError(f"the {tier} budget is {limit} bytes; it has to be 0 or more")
        self.limits = {tier: None if n is None else int(n) for tier, n in limits.items()}
        self._from_now = from_now
        self._used = dict.fromkeys(TIERS, 0)
        self._most = dict.fromkeys(TIERS, 0)
        super().__init__(existing, computes_on=computes_on)

    def in_use(self, tier: str = "device") -> int:
        """Bytes held in the tier now: tensors, and what was charged by hand."""
        self.settle()
        return self._used[checked(tier)]

    def most(self, tier: str = "device") -> int:
        """The most that was in use at once, including what was there at the start."""
        self.settle()
        return self._most[checked(tier)]

    def __enter__(self) -> Budget:
        for tier, limit in self.limits.items():
            if limit is not None and self.in_use(tier) > limit:
                over = "what was there before the budget"
                raise OutOfMemory(tier, 0, self.in_use(tier), limit, over)
        super().__enter__()
        return self

    def check(self, tier: str, nbytes: int, what: str) -> None:
        """Raise if `nbytes` more would cross the tier's budget."""
        limit = self.limits[tier]
        if limit is not None and self.in_use(tier) + nbytes > limit:
            raise OutOfMemory(tier, nbytes, self.in_use(tier), limit, what)

    # ---- what the watch tells
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
        # A refused allocation never was in use.
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
        # Raised anew: a notebook keeps the last traceback, and with it what its frames refer to.
        del args, kwargs
        raise refusal.with_traceback(None)

    def _check_before(self, what: str, shape: Iterable[int], options: dict) -> None:
        """Refuse a tensor of known size before its memory is touched."""
        place = torch.device(options.get("device") or "cpu")
        dtype = options.get("dtype") or torch.get_default_dtype()
        if (place.type == "meta" and not self._meta) or not isinstance(shape, (list, tuple)):
            return
        here = place.type == self._computes_on or self._meta
        tier = self.making[-1] if self.making else ("device" if here else "host")
        self.check(tier, math.prod(shape) * dtype.itemsize, what)


class Charge:
    """Bytes that no tensor shows, such as a file on disk. `release()` once, or use `with`."""

    def __init__(self, tier: str, nbytes: int, what: str):
        open_now = [m for m in _get_current_dispatch_mode_stack() if isinstance(m, Budget)]
        for budget_ in open_now:
            budget_.check(tier, nbytes, what)
        for budget_ in open_now:
            budget_._take(tier, nbytes)
        self.tier, self.nbytes, self._charged = tier, nbytes, open_now

    def release(self) -> None:
        """Give the bytes back; a second call does nothing."""
        for budget_ in self._charged:
            budget_._used[self.tier] -= self.nbytes
        self._charged = []

    def __enter__(self) -> Charge:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def charge(tier: str, nbytes: int, what: str = "a file") -> Charge:
    """Count bytes against every open budget; raises if one is crossed. Keep it, and release it."""
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
    """`with budget(device=200_000_000):` raises `OutOfMemory` at the allocation that crosses it.

    Counts every tensor of the process, also those from before (`from_now=True`: only what is made
    inside). On a CPU rank all tensors are "device" but those made under `tier("host")` or marked;
    on a GPU rank CPU tensors are "host". Files are counted where code calls `charge("disk", …)`.
    The refused tensor is gone when the error arrives. An operation that also writes in place has
    then written; what it takes and frees within itself is not seen (the CUDA allocator's own limit
    is `torch.cuda.set_per_process_memory_fraction`). With `computes_on="meta"`, in a dry run,
    shapes on torch's meta device are counted as the memory that they stand for.
    """
    limits = {"device": device, "host": host, "disk": disk}
    existing = () if from_now else alive(meta=computes_on == "meta")
    return Budget(limits, existing, computes_on, from_now)
