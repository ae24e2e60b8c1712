"""Where every byte of a checkpoint lies before one is written: files of logical tensors.

All ranks plan alike, so each can write its own bytes of a safetensors file that others write too. A
box of a tensor is runs of bytes; nothing in a file says how tensors were sharded. Lesson 14.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from course_lib.checkpoint.crc import crc32
from course_lib.layout import Box
from course_lib.pretrained.header import Slot, make_header
from course_lib.pretrained.writer import shards

Kinds = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
SHARD_BYTES = 5e9  # of a file, as transformers writes them


class FileSet:
    """Tensors by name, laid out over `STEM.safetensors`, or over several and their index."""

    def __init__(self, stem: str, tensors: Kinds, most: float = SHARD_BYTES):
        self.headers: dict[str, bytes] = {}  # of each file
        self.sizes: dict[str, int] = {}
        self.slots: dict[str, Slot] = {}
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
        self.index: dict[str, str] = {}  # file name to text, of an index where one is needed
        if len(files) > 1:
            total = sum(slot.stop - slot.start for slot in self.slots.values())
            text = {"metadata": {"total_size": total}, "weight_map": self.file_of}
            name = f"{stem}.safetensors.index.json"
            self.index[name] = json.dumps(text, indent=2, sort_keys=True) + "\n"

    def about(self, name: str) -> dict:
        """What a reader can hold a file against before it reads a tensor."""
        return {"bytes": self.sizes[name], "header": f"{crc32(self.headers[name]):08x}"}


def runs(shape: Sequence[int], box: Box) -> Iterator[tuple[int, int]]:
    """(start, length) of the runs of elements that a box fills in a row-major tensor, in order."""
    d = len(shape)
    while d and box.size[d - 1] == shape[d - 1]:  # dims that the box has whole join the run
        d -= 1
    inner = math.prod(shape[d:])
    if d == 0:
        yield 0, inner
        return
    strides = [math.prod(shape[k + 1 :]) for k in range(d)]
    length = box.size[d - 1] * inner
    first = box.offset[d - 1] * inner
    outer = [
        range(o * stride, (o + size) * stride, stride)
        for o, size, stride in zip(box.offset[: d - 1], box.size, strides, strict=False)
    ]
    for starts in itertools.product(*outer):
        yield first + sum(starts), length
