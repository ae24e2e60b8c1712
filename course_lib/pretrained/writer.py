"""A checkpoint on its way to the disk: shards planned first, filled in any order, shown at the end.

The files grow in a folder of another name, which takes the place of the old one when all is
written: a full disk, or an end in the middle, leaves what was there. Lesson 08.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import torch

from course_lib.files import sync_file, sync_folder
from course_lib.pretrained.header import CheckpointError, Slot, make_header
from course_lib.pretrained.reader import INDEX, WHOLE

CONFIG = "config.json"
Kinds = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def shards(tensors: Kinds, most: float) -> list[dict]:
    """The tensors in order, as files of at most `most` bytes, or of a single tensor above it."""
    if not most >= 1:
        raise CheckpointError(f"shard_bytes={most} has to be 1 or more")
    files: list[dict] = [{}]
    used = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * dtype.itemsize
        if files[-1] and used + size > most:
            files.append({})
            used = 0
        files[-1][name] = dtype, shape
        used += size
    return files


class Writer:
    """Takes the tensors of a checkpoint one by one and holds none of them."""

    def __init__(
        self, folder: str | os.PathLike, tensors: Kinds, config: Mapping | None, most: float
    ):
        self.folder = Path(folder).expanduser().resolve()
        files = shards(tensors, most)
        _check_place(self.folder)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.new = self._beside("new")
        self.new.mkdir()
        self.total = sum(math.prod(shape) * dtype.itemsize for dtype, shape in tensors.values())
        self._slots: dict[str, Slot] = {}
        self._file_of: dict[str, str] = {}
        self._owed: dict[str, set[str]] = {}
        self._open: dict[str, BinaryIO] = {}
        self._headers: dict[str, bytes] = {}
        try:
            for number, one in enumerate(files, start=1):
                name = WHOLE
                if len(files) > 1:
                    name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
                self._headers[name], slots = make_header(one)
                self._slots |= slots
                self._owed[name] = set(slots)
                self._file_of |= dict.fromkeys(slots, name)
            if config is not None:  # of weights whose model is not known
                self._write(CONFIG, _text(config))
            if len(files) > 1:
                index = {"metadata": {"total_size": self.total}, "weight_map": self._file_of}
                self._write(INDEX, _text(index))
        except BaseException:
            self.discard()
            raise

    def put(self, name: str, numbers: bytes | bytearray) -> None:
        """Write a tensor's bytes, once; a file that has all of its own goes to the disk."""
        slot, where = self._slots[name], self._file_of[name]
        if len(numbers) != slot.stop - slot.start:
            raise CheckpointError(
                f"{name} came with {len(numbers)} bytes and has a place of {slot.stop - slot.start}"
            )
        self._owed[where].remove(name)
        if where not in self._open:
            self._open[where] = (self.new / where).open("wb")
            self._open[where].write(self._headers[where])
        file = self._open[where]
        file.seek(slot.start)
        file.write(numbers)
        if not self._owed[where]:
            _to_disk(self._open.pop(where))

    def finish(self) -> None:
        """Put the new folder in the old one's place; what else was in that comes along."""
        lost = [name for owed in self._owed.values() for name in owed]
        if lost:
            raise CheckpointError(f"{len(lost)} tensors were never written, such as {min(lost)}")
        sync_folder(self.new)
        if not self.folder.exists():
            self.new.rename(self.folder)
        else:
            shutil.copymode(self.folder, self.new)
            for one in self.folder.iterdir():
                if not _ours(one.name):
                    _keep(one, self.new / one.name)
            old = self._beside("old")
            self.folder.rename(old)
            try:
                self.new.rename(self.folder)
            except BaseException:
                old.rename(self.folder)
                raise
            shutil.rmtree(old, ignore_errors=True)
        sync_folder(self.folder.parent)

    def discard(self) -> None:
        """Take away what was written so far; after finish() there is nothing to take."""
        while self._open:
            with contextlib.suppress(OSError):  # a full disk refuses what the buffer holds again
                self._open.popitem()[1].close()
        shutil.rmtree(self.new, ignore_errors=True)

    def _write(self, name: str, text: bytes) -> None:
        file = (self.new / name).open("wb")
        file.write(text)
        _to_disk(file)

    def _beside(self, what: str) -> Path:
        return self.folder.with_name(f".{self.folder.name}.{what}-{secrets.token_hex(4)}")


def _check_place(folder: Path) -> None:
    """A folder that is no checkpoint is not replaced: somebody may have meant another one."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; a checkpoint is a folder, so name another")
    inside = [one.name for one in folder.iterdir()]
    if inside and not (CONFIG in inside and any(_ours(name) for name in inside)):
        raise CheckpointError(
            f"{folder} holds {len(inside)} files or folders and no checkpoint; saving would "
            "replace it, so name a new folder, or one with a checkpoint"
        )
    here = Path.cwd()
    if folder == here or folder in here.parents:
        raise CheckpointError(f"{folder} is where this program runs; save to another folder")


def _ours(name: str) -> bool:
    weights = name.startswith("model") and name.endswith(".safetensors")
    return weights or name in (INDEX, CONFIG)


def _text(told: Mapping) -> bytes:
    return (json.dumps(told, indent=2, sort_keys=True) + "\n").encode()


def _to_disk(file: BinaryIO) -> None:
    """Sync a file and close it, whether or not the disk takes it."""
    with file:
        sync_file(file)


def _keep(source: Path, target: Path) -> None:
    """The same file or folder under a second name; a link stays a link."""
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True, copy_function=_link)
    else:
        _link(source, target)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without second names
        shutil.copy2(source, target, follow_symlinks=False)
