"""A unit's shard in a file: read ahead while the units before it are in use, then let go.

Two are under way at most. A rank whose shard holds padding alone reads nothing. Lesson 12.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.memory import tier
from course_lib.meta import host_of
from course_lib.zero.offload.files import File, Files, Pending, buffer
from course_lib.zero.offload.host import HostStore

AHEAD = 2  # shards that are read, or have been and wait for their use


class FilePlace(NamedTuple):
    """Where a shard's numbers lie."""

    file: File
    offset: int
    nbytes: int
    count: int


class Reads:
    """The memory that shards are read into: `AHEAD` times the largest."""

    def __init__(self, io: Files, device: torch.device):
        self.io, self.device = io, device
        self.stores: list[FileStore] = []
        self._free: list[Tensor] | None = None
        self.closed = False

    def free(self) -> Tensor | None:
        """A buffer that nobody uses, if there is one."""
        if self._free is None:
            largest = max(one.place.nbytes for one in self.stores if one.place is not None)
            self._free = [buffer(largest, self.device) for _ in range(AHEAD)]
        return self._free.pop() if self._free else None

    def memory(self) -> list[Tensor]:
        """All of it that is not with a store right now."""
        return list(self._free or [])

    def give_back(self, memory: Tensor) -> None:
        self._free.append(memory)

    def drop(self) -> None:
        """Forget all that was read ahead: it may be about to change."""
        for store in self.stores:
            store.drop()


class FileStore:
    """The shard of one unit, in a file between uses. `place` is None where it is padding alone."""

    def __init__(self, reads: Reads):
        self.reads, self.place = reads, None
        self.numel, self.dtype = 0, torch.float32
        self._coming: tuple[Tensor, Pending] | None = None
        reads.stores.append(self)

    def begin(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Memory for the time until the unit is filled."""
        self.numel, self.dtype = numel, dtype
        with tier("host"):
            return torch.zeros(numel, dtype=dtype, device=host_of(self.reads.device))

    def settled(self, shard: Tensor) -> Tensor:
        """It lies in the file: in memory nothing is left of it."""
        return torch.empty(0, dtype=self.dtype, device=self.reads.device)

    def fetch(self) -> None:
        """Read ahead, if there is memory for it."""
        if self.place is None or self._coming is not None:
            return
        memory = self.reads.free()
        if memory is not None:
            self._read(memory)

    def _read(self, memory: Tensor) -> None:
        if self.reads.closed:
            raise RuntimeError("the engine was closed, and its files with the parameters removed")
        part = memory[: self.place.nbytes]
        self._coming = memory, self.reads.io.read(self.place.file, self.place.offset, part)

    def on_device(self, shard: Tensor) -> Tensor:
        """The shard where the rank computes, to be sent and let go."""
        there = torch.zeros(self.numel, dtype=self.dtype, device=self.reads.device)
        if self.place is None:
            return there
        if self._coming is None:
            memory = self.reads.free()
            if memory is None:  # read ahead for others, which were not used
                self.reads.drop()
                memory = self.reads.free()
            self._read(memory)
        memory, pending = self._coming
        try:
            pending.wait()
            numbers = memory[: self.place.count * self.dtype.itemsize].view(self.dtype)
            there[: self.place.count].copy_(numbers)
        finally:
            self._coming = None
            self.reads.give_back(memory)
        return there

    def without_files(self, shard: Tensor) -> tuple[Tensor, HostStore]:
        """The shard in the host's memory, for the time after the files."""
        store, numbers = HostStore(self.reads.device), self.on_device(shard)
        there = store.begin(self.numel, self.dtype)
        return there.copy_(numbers), store

    def drop(self) -> None:
        """Forget what was read ahead."""
        if self._coming is not None:
            memory, pending = self._coming
            self._coming = None
            try:
                pending.wait()
            finally:
                self.reads.give_back(memory)
