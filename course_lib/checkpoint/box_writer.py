"""Boxes written into files: each rank writes its runs of bytes at their positions and counts them.

One rank creates the files with header and length; then all ranks open them and write concurrently.
Each rank reports its element counts and checksum shares, which are then combined. Lesson 14.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch

from course_lib.checkpoint.files import CountedRuns, runs
from course_lib.checkpoint.off_gpu import Window
from course_lib.checkpoint.shared_errors import about
from course_lib.files import start_writing
from course_lib.layout import Box
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.writer import FileSet

WAITING = 8 << 20  # bytes of a file that are written before the disk is asked to start


def make(folder: Path, sets: Sequence[FileSet]) -> None:
    """Create the files with their headers and lengths; only one rank calls this."""
    for files in sets:
        for name, header in files.headers.items():
            with about(folder / name), (folder / name).open("xb") as file:
                file.write(header)
                file.truncate(files.sizes[name])


class Takes(Protocol):
    """A receiver of boxes: a writer, or a copy that is written later."""

    def put(self, name: str, box: Box, x: torch.Tensor) -> None:
        """Take `x`, in the box's shape; afterwards the caller may reuse its memory."""


class BoxWriter(CountedRuns):
    """A writer for the boxes of one set of files; as a context manager it closes the files."""

    def __init__(self, folder: Path, files: FileSet):
        super().__init__()
        self.folder, self.files = folder, files
        self._window = Window()
        self._open: dict[str, int] = {}
        self._waiting: Counter[int] = Counter()  # bytes by file

    def put(self, name: str, box: Box, x: torch.Tensor) -> None:
        """Write `x`, in the box's shape, to its position; each element may be written only once."""
        slot, width = self.files.slots[name], x.element_size()
        if x.numel() != box.numel:
            raise CheckpointError(f"{name}: got {x.numel()} elements instead of {box.numel}")
        places, at = [], 0  # (start in the tensor, start in the box, length), in bytes
        for start, length in runs(slot.shape, box):
            places.append((start * width, at, length * width))
            at += length * width
        path = self.files.file_of[name]
        with about(self.folder / path):
            file = self._file(path)
            for begin, content in self._window.pieces(x):
                inside = list(_inside(places, begin, content))
                for start, piece in inside:
                    _write(file, piece, slot.start + start)
                self.count(name, slot, inside)
        self.elements[name] += box.numel
        self.bytes += at
        self._waiting[file] += at
        if self._waiting[file] >= WAITING:
            start_writing(file)
            self._waiting[file] = 0

    def sync(self) -> None:
        """Wait until this rank's bytes are on the disk."""
        for name, file in self._open.items():
            with about(self.folder / name):
                os.fsync(file)

    def __enter__(self) -> BoxWriter:
        return self

    def __exit__(self, *error: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _file(self, name: str) -> int:
        if name not in self._open:
            self._open[name] = os.open(self.folder / name, os.O_WRONLY | os.O_CLOEXEC)
        return self._open[name]


def _inside(
    places: Sequence[tuple[int, int, int]], begin: int, content: memoryview
) -> Iterator[tuple[int, memoryview]]:
    """Yield (start in the tensor, bytes) for each run that overlaps the box piece at `begin`."""
    end = begin + len(content)
    for start, at, length in places:
        first, stop = max(at, begin), min(at + length, end)
        if first < stop:
            yield start + first - at, content[first - begin : stop - begin]


def _write(file: int, content: memoryview, at: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(file, content[done:], at + done)
