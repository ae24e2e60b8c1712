"""A checkpoint being written: shards are planned first, filled in any order, published at the end.

The files are written in a folder with a temporary name, which replaces the old one after everything
is written. So a full disk or an interruption leaves the old folder unchanged. Lesson 08.
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
from course_lib.pretrained.header import CheckpointError, FileSlot, make_header
from course_lib.pretrained.reader import INDEX

CONFIG = "config.json"
Kinds = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def shards(tensors: Kinds, most: float) -> list[dict]:
    """Split the tensors, in order, into files of `most` bytes, or more for one larger tensor."""
    if not most >= 1:
        raise CheckpointError(f"shard_bytes={most} must be 1 or more")
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


class FileSet:
    """The layout of named tensors in `STEM.safetensors`, or in several files with an index."""

    def __init__(self, stem: str, tensors: Kinds, most: float):
        self.headers: dict[str, bytes] = {}  # by file
        self.sizes: dict[str, int] = {}
        self.slots: dict[str, FileSlot] = {}
        self.file_of: dict[str, str] = {}
        files = shards(tensors, most) if tensors else []
        for number, kinds in enumerate(files, start=1):
            name = f"{stem}.safetensors"
            if len(files) > 1:
                name = f"{stem}-{number:05d}-of-{len(files):05d}.safetensors"
            self.headers[name], slots = make_header(kinds)
            self.sizes[name] = max(slot.stop for slot in slots.values())
            self.slots |= slots
            self.file_of |= dict.fromkeys(slots, name)
        self.total = sum(slot.stop - slot.start for slot in self.slots.values())
        self.index: dict[str, str] = {}  # file name → text, for an index if one is needed
        if len(files) > 1:
            index = {"metadata": {"total_size": self.total}, "weight_map": self.file_of}
            self.index[f"{stem}.safetensors.index.json"] = as_json(index)


class Writer:
    """A receiver for the tensors of a checkpoint, which holds none of them in memory."""

    def __init__(
        self, folder: str | os.PathLike, tensors: Kinds, config: Mapping | None, most: float
    ):
        self.folder = Path(folder).expanduser().resolve()
        self.files = FileSet("model", tensors, most)
        _check_place(self.folder)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.new = self._beside("new")
        self.new.mkdir()
        self._missing = {file: set() for file in self.files.headers}
        for name, file in self.files.file_of.items():
            self._missing[file].add(name)
        self._open: dict[str, BinaryIO] = {}
        texts = dict(self.files.index)
        if config is not None:  # without it, the model of these weights is unknown
            texts[CONFIG] = as_json(config)
        try:
            for name, text in texts.items():
                with (self.new / name).open("w", encoding="utf-8") as file:
                    file.write(text)
                    sync_file(file)
        except BaseException:
            self.discard()
            raise

    def put(self, name: str, numbers: bytes | bytearray) -> None:
        """Write a tensor's bytes, once; a complete file is synced to the disk."""
        slot, where = self.files.slots[name], self.files.file_of[name]
        if len(numbers) != slot.stop - slot.start:
            raise CheckpointError(
                f"{name} has {len(numbers)} bytes instead of {slot.stop - slot.start}"
            )
        self._missing[where].remove(name)
        if where not in self._open:
            self._open[where] = (self.new / where).open("wb")
            self._open[where].write(self.files.headers[where])
        file = self._open[where]
        file.seek(slot.start)
        file.write(numbers)
        if not self._missing[where]:
            with self._open.pop(where):  # closed even if the disk fails
                sync_file(file)

    def finish(self) -> None:
        """Replace the old folder by the new one; the old folder's other files are kept."""
        lost = [name for names in self._missing.values() for name in names]
        if lost:
            raise CheckpointError(f"{len(lost)} tensors were never written, such as {min(lost)}")
        sync_folder(self.new)
        if not self.folder.exists():
            self.new.rename(self.folder)
        else:
            options = {"symlinks": True, "dirs_exist_ok": True, "copy_function": _link}
            shutil.copytree(self.folder, self.new, ignore=self._replaced, **options)
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
        """Remove everything written so far; after finish() there is nothing to remove."""
        while self._open:
            with contextlib.suppress(OSError):  # a full disk refuses the buffer again
                self._open.popitem()[1].close()
        shutil.rmtree(self.new, ignore_errors=True)

    def _replaced(self, folder: str, names: list[str]) -> set[str]:
        """Select the checkpoint files of the old folder, which the new folder replaces."""
        return {name for name in names if _ours(name) and Path(folder) == self.folder}

    def _beside(self, what: str) -> Path:
        return self.folder.with_name(f".{self.folder.name}.{what}-{secrets.token_hex(4)}")


def _check_place(folder: Path) -> None:
    """Refuse to replace a folder without a checkpoint, because its name may be a mistake."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a file, but a checkpoint is a folder; name a folder")
    inside = [one.name for one in folder.iterdir()]
    if inside and not (CONFIG in inside and any(_ours(name) for name in inside)):
        raise CheckpointError(
            f"{folder} holds {len(inside)} files or folders but no checkpoint, and saving would "
            "replace it; name a new folder, or one with a checkpoint"
        )
    here = Path.cwd()
    if folder == here or folder in here.parents:
        raise CheckpointError(f"{folder} is where this program runs; save to a different folder")


def _ours(name: str) -> bool:
    weights = name.startswith("model") and name.endswith(".safetensors")
    return weights or name in (INDEX, CONFIG)


def as_json(keys: Mapping) -> str:
    return json.dumps(keys, indent=2, sort_keys=True) + "\n"


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target, follow_symlinks=False)
