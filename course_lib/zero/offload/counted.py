"""Files that are counted and never made: for a rank of shapes alone, in a dry run.

Every offset and length is that of the files that would be there; no byte reaches a disk. Lesson 12.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from course_lib.memory import Charge, charge
from course_lib.zero.offload.files import File, Pending, check_aligned


class Counted:
    """The files' layer that reads and writes nothing, and counts it."""

    name = "counted"

    def __init__(self) -> None:
        self.bytes_read = self.bytes_written = self.syncs = 0

    def read(self, file: File, offset: int, into: Tensor) -> Pending:
        check_aligned(file, offset, into)
        self.bytes_read += into.numel()
        return Pending([])

    def write(self, file: File, offset: int, data: Tensor) -> Pending:
        check_aligned(file, offset, data)
        self.bytes_written += data.numel()
        return Pending([])

    def sync(self, files: Iterable[File]) -> Pending:
        self.syncs += len(list(files))
        return Pending([])

    def close(self) -> None:
        """Nothing is open."""


class Unwritten:
    """The files of one engine on one rank, by their sizes."""

    def __init__(self, path: str | Path):
        self.path, self.rank = Path(path), dist.get_rank()
        self.files: list[File] = []
        self._charges: list[Charge] = []

    def make(self, bucket: int, nbytes: int) -> File:
        """A file for a bucket, counted in the tier disk."""
        self._charges.append(charge("disk", nbytes, f"the file of bucket {bucket}"))
        name = f"zero-rank-{self.rank:05d}-bucket-{bucket:04d}.states"
        self.files.append(File(self.path / name, -1, nbytes, True))
        return self.files[-1]

    def close(self) -> None:
        """Give the bytes back; a second call does nothing."""
        self.files.clear()
        while self._charges:
            self._charges.pop().release()
