"""A watch over storages: which operation made each one, and when the last reference let it go.

A dispatch mode sees what every operation returns, in backward too; a weak reference tells the end.
Lesson 01 meets it inside the meter, lesson 09 inside budgets. It cannot see into one operation.
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
    """One storage from birth to death; moments are nanoseconds of `time.time_ns`."""

    key: int
    pointer: int
    nbytes: int
    device: str
    tier: str
    what: str  # the operation that made it
    seen: int
    origin: str  # "made" in sight; "before" the watch; "met" as an argument, made out of sight
    died: int | None = None
    reference: weakref.ref | None = None


class StorageWatch(LightMode):
    """Follows storages while it is entered. `existing` are those to know from the start.

    With `keep_dead` the lives that have ended stay in `lives()`; without it they are forgotten.
    Subclasses hear of births and deaths through `born`, `died` and `growing`.
    """

    def __init__(
        self,
        existing: Iterable[UntypedStorage] = (),
        *,
        keep_dead: bool = False,
        computes_on: str | None = None,
    ):
        super().__init__()
        self.making: list[str] = []  # names of the `tier(...)` blocks that are open
        self._computes_on = computes_on or rank_computes_on()
        self._meta = self._computes_on == "meta"  # shapes stand for memory, in a dry run
        self._keep_dead = keep_dead
        self._living: dict[int, Life] = {}
        self._dead: list[Life] = []
        # Finalizers run in any thread at any moment, so they only leave a note; `settle` books it.
        self._ended: deque[tuple[int, Life]] = deque()
        self._open = False
        for storage in existing:
            self._meet(storage, "before", "before")

    # ---- for subclasses
    def born(self, life: Life) -> None:
        """Called for each new storage, right after the operation that made it."""

    def died(self, life: Life) -> None:
        """Called once for each storage that is gone."""

    def growing(self, storage: UntypedStorage, tier: str, extra: int) -> None:
        """Called before a storage is resized to more bytes."""

    # ---- for readers
    def lives(self) -> list[Life]:
        """What the watch knows: the dead first (with `keep_dead`), then the living."""
        self.settle()
        return [*self._dead, *self._living.values()]

    def made_and_alive(self) -> Iterator[UntypedStorage]:
        """Storages that were made under this watch and still exist."""
        self.settle()
        for life in list(self._living.values()):
            storage = life.reference()
            if storage is not None and life.origin == "made":
                yield storage

    def settle(self) -> None:
        """Book the deaths that were noted since the last time."""
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
            return NotImplemented  # DTensor and its like unwrap first: their inner operations count
        kwargs = kwargs or {}
        what = func._schema.name
        # A storage that first turns up as an argument was made out of sight: by C++ code or another
        # thread. Only `lift_fresh`, the end of `torch.tensor(data)`, hands over what is surely new.
        origin = "made" if what == "aten::lift_fresh" else "met"
        for storage in storages((args, kwargs), meta=self._meta):
            self._meet(storage, what, origin)
        result = func(*args, **kwargs)
        storage = None
        try:
            for storage in storages(result, meta=self._meta):
                self._meet(storage, what, "made")
        except BaseException:
            del result, storage  # refused memory must not live on in the traceback
            raise
        return result

    def _meet(self, storage: UntypedStorage, what: str, origin: str) -> None:
        self.settle()
        key, nbytes = storage._cdata, storage.nbytes()
        life = self._living.get(key)
        if life is not None:
            if life.reference() is storage and life.nbytes == nbytes:
                return
            # Another storage at the same address, or the same one resized by its operation.
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
        """`storage.resize_` frees and fills parameters (FSDP2, ZeRO-3) and is no operation.

        The dispatcher never hears of it, so the method itself is watched while the watch is open.
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
