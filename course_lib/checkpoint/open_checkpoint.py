"""An open checkpoint: boxes of its logical tensors, read by exact byte ranges and checked.

Files and headers are verified before a tensor is read. For the tensors, checksum shares are kept
until all reads can be combined. Lesson 14.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from course_lib.checkpoint import checksums, folder
from course_lib.checkpoint.crc import crc32
from course_lib.checkpoint.files import TENSORS, CountedRuns, Report, report_of, runs
from course_lib.layout import Box
from course_lib.pretrained.header import STORED as KINDS
from course_lib.pretrained.header import CheckpointError, FileSlot, read_json
from course_lib.pretrained.reader import Checkpoint

AT_ONCE = 1 << 24  # bytes of a tensor that `check` holds in memory


def check(path: Path | str) -> None:
    """Read every byte of a checkpoint (small files and tensors) and refuse any difference from the
    bytes written. Call this in only one process."""
    path = Path(path)
    checksums.check(
        path, checksums.read(path, lambda: folder.remedy(path)), lambda: folder.remedy(path)
    )
    with OpenCheckpoint(path) as saved:
        saved.check()


class SavedPart(CountedRuns):
    """One set of files, `model` or `optimizer`, open for reading."""

    def __init__(self, path: Path, stem: str, crcs: dict[str, str], *, verify: bool):
        super().__init__()
        self.path, self.stem, self.crcs, self.verify = path, stem, crcs, verify
        self.file: Checkpoint | None = None
        self.slots: dict[str, FileSlot] = {}
        if crcs:
            index = path / f"{stem}.safetensors.index.json"
            self.file = Checkpoint(index if index.exists() else path / f"{stem}.safetensors")
            self.slots = self.file.slots

    def read(self, name: str, box: Box | None = None, *, counts: bool = True) -> torch.Tensor:
        """Read a box of a tensor, or all of it. With `counts`, the bytes enter the checksum."""
        if name not in self.slots:
            raise CheckpointError(f"{self.path}: {name} is not among the {self.stem}'s tensors")
        slot = self.slots[name]
        box = Box((0,) * len(slot.shape), tuple(slot.shape)) if box is None else box
        elements = torch.empty(box.size, dtype=KINDS[slot.dtype], device="cpu")
        self.read_into(name, box, elements, counts=counts)
        return elements

    def read_into(self, name: str, box: Box, place: torch.Tensor, *, counts: bool) -> None:
        """Read a box into contiguous host memory, without a second copy if `place` has the stored
        dtype."""
        slot, size = self.slots[name], place.element_size()
        if place.dtype != KINDS[slot.dtype]:
            place.copy_(self.read(name, box, counts=counts))
            return
        view = memoryview(place.reshape(-1).view(torch.uint8).numpy())
        places = [(start * size, length * size) for start, length in runs(slot.shape, box)]
        self.file.fill(name, places, view)
        self.bytes += len(view)
        if counts and self.verify:
            ends = itertools.accumulate(length for _, length in places)
            pieces = [(at, view[end - n : end]) for (at, n), end in zip(places, ends, strict=True)]
            self.count(name, slot, pieces)
            self.elements[name] += box.numel

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


class OpenCheckpoint:
    """A checkpoint's files, and a context manager that closes them. `model` and `optimizer` read
    boxes; without `verify` they compute no checksums."""

    def __init__(self, path: Path | str, *, verify: bool = True):
        self.path = Path(path)
        self.parts: list[SavedPart] = []
        checksums.check(self.path, [TENSORS], lambda: folder.remedy(self.path))
        file = self.path / TENSORS
        self.about = read_json(file.read_bytes(), file)
        if self.about.get("form") != folder.FORM:
            raise CheckpointError(
                f"{file} has format {self.about.get('form')!r}, but this course_lib reads format "
                f"{folder.FORM}; read it with the release that wrote it, or {self.remedy()}"
            )
        for name, about in self.about["files"].items():
            self._check_file(self.path / name, about)
        try:
            for stem in ("model", "optimizer"):
                self.parts.append(SavedPart(self.path, stem, self.about[stem], verify=verify))
            self.model, self.optimizer = self.parts
            for part in self.parts:
                self._check_names(part)
        except BaseException:
            self.close()
            raise

    def remedy(self) -> str:
        return folder.remedy(self.path)

    def report(self) -> dict[str, dict]:
        """Return the checksum shares and element counts of this rank's reads, for `compare`."""
        return {part.stem: report_of(part) for part in self.parts}

    def compare(self, reports: Mapping[str, Report], more: str = "") -> None:
        """Refuse a tensor whose bytes have changed. Only tensors that were read completely by the
        ranks in `reports` are compared."""
        for part in self.parts:
            report = reports[part.stem]
            for name, slot in part.slots.items():
                if report["elements"].get(name, 0) == math.prod(slot.shape):
                    self._compare(part, name, report["shares"].get(name, 0), more)

    def check(self, wanted: Callable[[str, str], bool] = lambda stem, name: True) -> None:
        """Read in pieces every tensor for which wanted(set of files, name) is true, by default all,
        and refuse a tensor that has changed."""
        for part in self.parts:
            for name, slot in part.slots.items():
                if not wanted(part.stem, name):
                    continue
                crc, total = 0, slot.stop - slot.start
                for start in range(0, total, AT_ONCE):
                    piece = bytearray(min(AT_ONCE, total - start))
                    part.file.fill(name, [(start, len(piece))], memoryview(piece))
                    crc = crc32(piece, crc)
                self._compare(part, name, crc)

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def __enter__(self) -> OpenCheckpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _compare(self, part: SavedPart, name: str, crc: int, more: str = "") -> None:
        if f"{crc:08x}" != part.crcs[name]:
            raise CheckpointError(
                f"{part.file.path_of(name)} is damaged in {name}, because the CRC-32 of its bytes "
                f"is {crc:08x}, but {TENSORS} says {part.crcs[name]}; {more}{self.remedy()}"
            )

    def _check_file(self, path: Path, about: dict) -> None:
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                length = int.from_bytes(file.read(8), "little")
                file.seek(0)
                header = file.read(8 + min(length, size))
        except OSError as error:
            raise CheckpointError(
                f"{path}, a part of the checkpoint, cannot be read ({error.strerror}); "
                f"{self.remedy()}"
            ) from error
        if size != about["bytes"]:
            raise CheckpointError(
                f"{path} has {size} bytes, but {about['bytes']} were written; {self.remedy()}"
            )
        if f"{crc32(header):08x}" != about["header"]:
            raise CheckpointError(f"{path} is damaged in its header; {self.remedy()}")

    def _check_names(self, part: SavedPart) -> None:
        differ = sorted(part.slots.keys() ^ part.crcs.keys())
        if differ:
            raise CheckpointError(
                f"{self.path / TENSORS} and the {part.stem}'s files disagree about {differ[0]}; "
                f"{self.remedy()}"
            )
