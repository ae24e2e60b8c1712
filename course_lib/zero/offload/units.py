"""A unit's shard in a file: read ahead during the units before it, and dropped after use.

At most two shards are read ahead. A rank whose shard is only padding reads nothing. Lesson 12.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.memory import tier
from course_lib.meta import host_of
from course_lib.zero.offload.files import File, Files, Pending, buffer
from course_lib.zero.offload.host import HostStore

AHEAD = 2  # shards that are being read or wait for their use


class FilePlace(NamedTuple):
    """The place of a shard's values in a file."""

    file: File
    offset: int
    nbytes: int
    count: int


class Reads:
    """The memory into which shards are read: `AHEAD` times the largest shard."""

    def __init__(self, io: Files, device: torch.device):
        self.io, self.device = io, device
        self.stores: list[FileStore] = []
        self._free: list[Tensor] | None = None
        self.closed = False

    def free(self) -> Tensor | None:
        """Return an unused buffer, if there is one."""
        if self._free is None:
            largest = max(one.place.nbytes for one in self.stores if one.place is not None)
            self._free = [buffer(largest, self.device) for _ in range(AHEAD)]
        return self._free.pop() if self._free else None

    def memory(self) -> list[Tensor]:
        """Return all buffers that no store is using at the moment."""
        return list(self._free or [])

    def give_back(self, memory: Tensor) -> None:
        self._free.append(memory)

    def drop(self) -> None:
        """Drop all data read ahead, because the files may be about to change."""
        for store in self.stores:
            store.drop()


class FileStore:
    """The shard of one unit, in a file between uses; `place` is None for a shard of padding."""

    def __init__(self, reads: Reads):
        self.reads, self.place = reads, None
        self.numel, self.dtype = 0, torch.float32
        self._coming: tuple[Tensor, Pending] | None = None
        reads.stores.append(self)

    def begin(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return host memory for the shard until the unit is filled."""
        self.numel, self.dtype = numel, dtype
        with tier("host"):
            return torch.zeros(numel, dtype=dtype, device=host_of(self.reads.device))

    def settled(self, shard: Tensor) -> Tensor:
        """Return an empty tensor, because the shard is in the file."""
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
        """Return the shard on the rank's device, to be sent and freed."""
        there = torch.zeros(self.numel, dtype=self.dtype, device=self.reads.device)
        if self.place is None:
            return there
        if self._coming is None:
            memory = self.reads.free()
            if memory is None:  # other shards were read ahead but not used
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
        """Return the shard in the host's memory, for use without the files."""
        store, numbers = HostStore(self.reads.device), self.on_device(shard)
        there = store.begin(self.numel, self.dtype)
        return there.copy_(numbers), store

    def drop(self) -> None:
        """Drop the data read ahead."""
        if self._coming is not None:
            memory, pending = self._coming
            self._coming = None
            try:
                pending.wait()
            finally:
                self.reads.give_back(memory)
