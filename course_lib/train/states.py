"""This rank's part of the optimizer in a safetensors file: no pickle, tensor after tensor.

Values and states go by the names of the parameters and the elements that the rank updates. What is
read is checked before anything is changed. Lesson 12; lesson 14 cuts them anew.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from course_lib.files import sync_file
from course_lib.pretrained import Checkpoint, CheckpointError
from course_lib.pretrained.header import DTYPES, Slot, make_header
from course_lib.zero import Engine

VALUE = ":value"  # what every part has; states come with the first step


def write(engine: Engine, path: Path) -> str:
    """All that this rank updates, on the disk when this returns; the sum of the bytes as they were
    in memory."""
    header, slots = make_header(engine.own_slots())
    digest = hashlib.sha256(header)
    with path.open("wb") as file:
        file.write(header)
        at = len(header)
        for name, x in engine.own_tensors():
            if slots[name].start != at:
                raise CheckpointError(f"{path}: {name} comes out of its order in the file")
            piece = _bytes(x)
            file.write(piece)
            digest.update(piece)
            at += len(piece)
        sync_file(file)
    return digest.hexdigest()


class Stored:
    """The open file of this rank's part, for `put_into`; a context, which closes it."""

    def __init__(self, engine: Engine, path: Path):
        self.engine, self.file = engine, Checkpoint(path)
        wanted = {name for name in engine.own_slots() if name.endswith(VALUE)}
        stored = {name for name in self.file.slots if name.endswith(VALUE)}
        if wanted != stored:
            other = sorted(wanted ^ stored)
            self.file.close()
            raise CheckpointError(
                f"{path} holds the states of another model or layout: it and this rank's part "
                f"differ in {len(other)} pieces, such as {other[0].removesuffix(VALUE)}"
            )

    def __enter__(self) -> Stored:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def put_into(self) -> None:
        """Put all of it in its place; every rank calls this."""
        kinds = {name: (_dtype(slot), tuple(slot.shape)) for name, slot in self.file.slots.items()}
        self.engine.put_own(kinds, self._read)

    def _read(self, name: str) -> Tensor:
        shape = tuple(self.file.slots[name].shape)
        if 0 in shape:  # a rank without a part of this weight
            return torch.empty(shape, dtype=_dtype(self.file.slots[name]))
        if shape:
            return self.file.read(name)
        slot = self.file.slots[name]
        self.file.slots[name] = slot._replace(shape=(1,))  # a number is read as a row of one
        try:
            return self.file.read(name).reshape(())
        finally:
            self.file.slots[name] = slot


def _dtype(slot: Slot) -> torch.dtype:
    return DTYPES[slot.dtype]


def _bytes(x: Tensor) -> bytes:
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
