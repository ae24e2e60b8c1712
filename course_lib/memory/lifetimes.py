"""A watch over storages: the operation that made each one, and the release of its last reference.

A dispatch mode sees every operation's result, in both passes, and a weak reference reports the
release. It is used by lesson 01's meter and lesson 09's budgets.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import UntypedStorage

from course_lib.ledger.torch_calls import LightMode
from course_lib.memory.storages import storages
from course_lib.memory.tiers import rank_computes_on, tier_of


@dataclass(eq=False)
class Life:
    """One storage from its allocation to its end; moments are nanoseconds of `time.time_ns`."""

    key: int
    pointer: int
    nbytes: int
    device: str
    tier: str
    what: str  # the operation that made it
    seen: int
    origin: str  # "made" under the watch, from "before" it, or "met" as an argument
    died: int | None = None
    reference: weakref.ref | None = None


class StorageWatch(LightMode):
    """A mode that follows storages while it is active, and `existing` storages from the start.

    With `keep_dead`, ended lives stay in `lives()`; otherwise they are forgotten. Subclasses are
    notified of births and deaths through `born`, `died` and `growing`.
    """

    def __init__(
        self,
        existing: Iterable[UntypedStorage] = (),
        *,
        keep_dead: bool = False,
        computes_on: str | None = None,
    ):
        super().__init__()
        self.making: list[str] = []  # names of the open `tier(...)` blocks
        self._computes_on = computes_on or rank_computes_on()
        self._meta = self._computes_on == "meta"  # in a dry run, shapes count as memory
        self._keep_dead = keep_dead
        self._living: dict[int, Life] = {}
        self._dead: list[Life] = []
        # Finalizers run in any thread at any time, so they only leave a note, which `settle` books.
        self._ended: deque[tuple[int, Life]] = deque()
        self._open = False
        for storage in existing:
            self._meet(storage, "before", "before")

    # ---- for subclasses
    def born(self, life: Life) -> None:
        """Handle a new storage, right after the operation that made it."""

    def died(self, life: Life) -> None:
        """Handle the release of a storage; called once for each."""

    def growing(self, storage: UntypedStorage, tier: str, extra: int) -> None:
        """Handle a resize of a storage to more bytes, before it happens."""

    # ---- for readers
    def lives(self) -> list[Life]:
        """Return all known lives: ended ones first (with `keep_dead`), then current ones."""
        self.settle()
        return [*self._dead, *self._living.values()]

    def made_and_alive(self) -> Iterator[UntypedStorage]:
        """Yield the storages that were made under this watch and still exist."""
        self.settle()
        for life in list(self._living.values()):
            storage = life.reference()
            if storage is not None and life.origin == "made":
                yield storage

    def settle(self) -> None:
        """Process the releases that were noted since the last call."""
        while self._ended:
            moment, life = self._ended.popleft()
            self._bury(life, moment)

    # ---- the mode itself
    def __enter__(self) -> StorageWatch:
        self._watch_resize()
        self._open = True
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._open = False
        if torch.UntypedStorage.resize_ is self._resize_here:
            torch.UntypedStorage.resize_ = self._resize_below

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # DTensor and similar unwrap first; their inner operations count
        kwargs = kwargs or {}
        what = func._schema.name
        # A storage first seen as an argument was made unseen, by C++ code or a different thread.
        # Only `lift_fresh`, the end of `torch.tensor(data)`, takes a storage that is surely new.
        origin = "made" if what == "aten::lift_fresh" else "met"
        for storage in storages((args, kwargs), meta=self._meta):
            self._meet(storage, what, origin)
        result = func(*args, **kwargs)
        storage = None
        try:
            for storage in storages(result, meta=self._meta):
                self._meet(storage, what, "made")
        except BaseException:
            del result, storage  # the traceback must not keep refused memory alive
            raise
        return result

    def _meet(self, storage: UntypedStorage, what: str, origin: str) -> None:
        self.settle()
        key, nbytes = storage._cdata, storage.nbytes()
        life = self._living.get(key)
        if life is not None:
            if life.reference() is storage and life.nbytes == nbytes:
                return
            # A different storage at the same address, or the same one resized by its operation.
            origin = "made" if life.reference() is storage else origin
            self._bury(life, time.time_ns())
        if nbytes == 0:
            return
        now = time.time_ns()
        tier = tier_of(storage, self._computes_on)
        if self.making and origin == "made":
            tier = self.making[-1]
        device = storage.device.type
        pointer = 0 if device == "meta" else storage.data_ptr()
        life = Life(key, pointer, nbytes, device, tier, what, now, origin)
        ended = self._ended
        life.reference = weakref.ref(storage, lambda _: ended.append((time.time_ns(), life)))
        self._living[key] = life
        try:
            self.born(life)
        except BaseException:
            del storage
            raise

    def _bury(self, life: Life, moment: int) -> None:
        if life.died is not None:
            return
        life.died = moment
        if self._living.get(life.key) is life:
            del self._living[life.key]
        if self._keep_dead:
            self._dead.append(life)
        self.died(life)

    def _watch_resize(self) -> None:
        """Watch `storage.resize_`, which frees and reallocates parameters (FSDP2, ZeRO-3).

        It is not an operation, so the dispatcher does not see it. Therefore the method is patched.
        """
        below = torch.UntypedStorage.resize_

        def resize_(storage: UntypedStorage, size: int) -> UntypedStorage:
            if not self._open or (storage.device.type == "meta" and not self._meta):
                return below(storage, size)
            self._meet(storage, "resize_", "met")
            extra = int(size) - storage.nbytes()
            if extra > 0:
                tier = self.making[-1] if self.making else tier_of(storage, self._computes_on)
                self.growing(storage, tier, extra)
            result = below(storage, size)
            self._meet(storage, "resize_", "made")
            return result

        self._resize_below, self._resize_here = below, resize_
        torch.UntypedStorage.resize_ = resize_
