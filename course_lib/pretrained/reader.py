"""A checkpoint of one or many files, read by exact byte ranges: each rank reads only its part.

A memory map is not used, because it reads full pages and reads ahead. Rows of a stored tensor need
one read, but columns need one read per row. Lesson 08 counts the bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from course_lib.pretrained.header import STORED, CheckpointError, FileSlot, read_header, read_json

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
AT_ONCE = 1 << 24  # bytes read in one call, and held in addition to the tensor


class Checkpoint:
    """The tensors of a checkpoint by name; headers are read immediately, elements on demand."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.folder = self.path if self.path.is_dir() else self.path.parent
        self.slots: dict[str, FileSlot] = {}
        self.files: dict[str, int] = {}  # the open file of each tensor
        self._open: dict[int, Path] = {}
        try:
            index = self._index()
            if index is None:
                self._take(self.path if self.path.is_file() else self.path / WHOLE, None)
            else:
                for file in sorted(set(index.values())):
                    self._take(self.folder / file, {name for name in index if index[name] == file})
        except BaseException:
            self.close()
            raise

    def read(self, name: str, dim: int = 0, start: int = 0, stop: int | None = None) -> Tensor:
        """Read a tensor from `start` to `stop` along `dim`, in its stored dtype."""
        slot, file = self.slots[name], self.files[name]
        size = slot.shape[dim]
        stop = size if stop is None else stop
        inner = (slot.stop - slot.start) // math.prod(slot.shape[: dim + 1])  # bytes of one step
        outer, run = math.prod(slot.shape[:dim]), (stop - start) * inner
        found = bytearray(outer * run)
        view = memoryview(found)
        if run == size * inner:  # all of dim, so runs can be merged
            outer, run = 1, outer * run
        for row in range(outer):
            at = slot.start + row * size * inner + start * inner
            self._fill(file, view[row * run : (row + 1) * run], at, name)
        shape = (*slot.shape[:dim], stop - start, *slot.shape[dim + 1 :])
        return torch.frombuffer(found, dtype=STORED[slot.dtype]).view(shape)

    def whole(self, name: str) -> Tensor:
        """Read a full tensor, including scalars and empty tensors."""
        slot = self.slots[name]
        found = torch.empty(slot.shape, dtype=STORED[slot.dtype], device="cpu")
        view = memoryview(found.view(-1).view(torch.uint8).numpy())
        self._fill(self.files[name], view, slot.start, name)
        return found

    def fill(self, name: str, runs: Iterable[tuple[int, int]], view: memoryview) -> None:
        """Read a tensor's runs of bytes, given as (start, length), consecutively into `view`."""
        at, slot, file = 0, self.slots[name], self.files[name]
        for start, length in runs:
            self._fill(file, view[at : at + length], slot.start + start, name, into=True)
            at += length

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[0])

    def path_of(self, name: str) -> Path:
        """Return the file that contains a tensor."""
        return self._open[self.files[name]]

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _fill(self, file: int, view: memoryview, at: int, name: str, *, into: bool = False) -> None:
        """Read until the view is full; `into` avoids an intermediate copy if the system can."""
        done = 0
        while done < len(view):
            if into and hasattr(os, "preadv"):
                got = os.preadv(file, [view[done : done + AT_ONCE]], at + done)
            else:
                piece = os.pread(file, min(len(view) - done, AT_ONCE), at + done)
                got = len(piece)
                view[done : done + got] = piece
            if not got:
                raise CheckpointError(
                    f"{self.path} ended at byte {at + done}, in the middle of {name}; check that "
                    "no program is writing it"
                )
            done += got

    def _index(self) -> dict[str, str] | None:
        """Read the index (tensor to file); None if one file holds everything."""
        path = self.path
        if not path.exists():
            raise FileNotFoundError(f"there is no checkpoint at {path}")
        if path.is_dir():
            if (path / WHOLE).exists():
                return None
            path = path / INDEX
            if not path.exists():
                raise _nothing(self.path)
        elif path.suffix != ".json":
            return None
        told = read_json(path.read_bytes(), path)
        index = told.get("weight_map")
        if not isinstance(index, dict) or not index:
            raise CheckpointError(f"{path} has no weight_map, which lists the file of each tensor")
        for name, file in index.items():
            # Only files in this folder; an index from elsewhere must not read our other files.
            if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
                raise CheckpointError(f"{path} places {name} in {file!r}, which is not a file name")
        return index

    def _take(self, path: Path, named: set[str] | None) -> None:
        """Open a file and compare its tensors with the index."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            what = f" (in the index for {len(named)} tensors, such as {min(named)})"
            raise type(error)(
                f"{path}{what if named else ''} cannot be opened: {error.strerror}"
            ) from error
        self._open[file] = path
        if hasattr(os, "posix_fadvise"):  # do not read ahead into other ranks' bytes
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        slots = read_header(file, path)
        if named is not None and named != slots.keys():
            lost, more = sorted(named - slots.keys()), sorted(slots.keys() - named)
            raise CheckpointError(
                f"{path} and the index disagree: {len(lost)} tensors of the index are not in it"
                f"{', such as ' + lost[0] if lost else ''}, and {len(more)} of the file are not in "
                f"the index{', such as ' + more[0] if more else ''}. Use the files of one save"
            )
        self.slots |= slots
        self.files |= dict.fromkeys(slots, file)


def check_range(own: Tensor, found: Tensor, name: str, path: Path) -> None:
    """Refuse elements that are finite as stored but infinite in the dtype of `own`."""
    if not own.is_floating_point() or torch.finfo(own.dtype).max >= torch.finfo(found.dtype).max:
        return
    lost = int((own.isinf() & ~found.isinf().to(own.device)).sum())
    if lost:
        raise CheckpointError(
            f"{path}: {lost} elements of {name}, stored as {found.dtype}, up to "
            f"{found[found.isfinite()].abs().max().item():.4g}, are too large for {own.dtype} "
            f"(maximum {torch.finfo(own.dtype).max:.4g}). Use bfloat16 or float32"
        )


def _nothing(folder: Path) -> CheckpointError:
    pickles = sorted(one.name for one in folder.glob("pytorch_model*.bin"))
    more = (
        f" {pickles[0]} is a pickle, which can run any code while it is read. Load it where you "
        "trust it, and save it with transformers' save_pretrained, which writes safetensors"
        if pickles
        else " Name a folder written by save_pretrained or pretrained.save"
    )
    return CheckpointError(f"{folder} holds neither {WHOLE} nor {INDEX}.{more}")
