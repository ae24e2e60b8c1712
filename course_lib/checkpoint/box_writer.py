"""Boxes into the files: each rank writes its own runs of bytes where they belong, and counts them.

Files are made by one rank, header and length; then all open them and write beside each other. What
was written, and the checksums' shares, is reported to be added up. Lesson 14.
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

WAITING = 8 << 20  # bytes of a file that are written before the disk is told to begin


def make(folder: Path, sets: Sequence[FileSet]) -> None:
    """The files with their headers and their lengths; one rank does it."""
    for files in sets:
        for name, header in files.headers.items():
            with about(folder / name), (folder / name).open("xb") as file:
                file.write(header)
                file.truncate(files.sizes[name])


class Takes(Protocol):
    """What boxes are handed to: a pen, or a copy that is written later."""

    def put(self, name: str, box: Box, x: torch.Tensor) -> None:
        """Take `x`, in the box's shape; its memory is the caller's again afterwards."""


class BoxWriter(CountedRuns):
    """Writes boxes of the tensors of one set of files; a context, which closes them."""

    def __init__(self, folder: Path, files: FileSet):
        super().__init__()
        self.folder, self.files = folder, files
        self._window = Window()
        self._open: dict[str, int] = {}
        self._waiting: Counter[int] = Counter()  # bytes by file

    def put(self, name: str, box: Box, x: torch.Tensor) -> None:
        """Write `x`, in the box's shape, to its place; each element may come once."""
        slot, width = self.files.slots[name], x.element_size()
        if x.numel() != box.numel:
            raise CheckpointError(f"{name}: {x.numel()} elements came for {box.numel}")
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
        """Wait until what this rank has written is on the disk."""
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
    """(start in the tensor, bytes) of what a piece of the box, from `begin` on, has of each run."""
    end = begin + len(content)
    for start, at, length in places:
        first, stop = max(at, begin), min(at + length, end)
        if first < stop:
            yield start + first - at, content[first - begin : stop - begin]


def _write(file: int, content: memoryview, at: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(file, content[done:], at + done)
