"""Parameters concatenated in flat buckets, and each bucket sharded over the ranks.

A bucket is padded to a multiple of the number of ranks, so that one message with equal pieces can
carry it. The padding is not a parameter and is never trained. Lesson 09 derives it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.layout import Box, flat, flat_boxes
from course_lib.layout.cut import FlatCut

BUCKET = 25 << 20  # bytes; torch's DDP has the same
IN_FLIGHT = 2  # most buckets with messages in progress, since each needs memory


@dataclass(frozen=True, eq=False)
class Slot:
    """The place of a parameter in its bucket."""

    name: str
    parameter: nn.Parameter
    start: int
    shape: torch.Size  # at stage 3 the parameter itself is empty between uses

    @property
    def numel(self) -> int:
        return self.shape.numel()

    @property
    def stop(self) -> int:
        return self.start + self.numel


class BucketPiece(NamedTuple):
    """A rank's part of a parameter: elements `start` to `stop` of the parameter, at position `at`
    in the rank's shard."""

    slot: Slot
    start: int
    stop: int
    at: int

    @property
    def numel(self) -> int:
        return self.stop - self.start

    def of(self, shard: Tensor) -> Tensor:
        """Return the view of this piece in a shard."""
        return shard[self.at : self.at + self.numel]


class Bucket:
    """Concatenated parameters of one dtype on one device, and their split over n ranks."""

    def __init__(self, slots: Sequence[Slot], n: int):
        self.slots = tuple(slots)
        self.cut: FlatCut = flat(slots[-1].stop, n)
        first = slots[0].parameter
        self.dtype, self.device = first.dtype, first.device

    @property
    def padded(self) -> int:
        return self.cut.padded

    def buffer(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return zeros of the bucket's length with padding."""
        return torch.zeros(self.padded, dtype=dtype or self.dtype, device=self.device)

    def room(self) -> Tensor:
        """Return a buffer to be filled, in which only the padding is zeroed."""
        buffer = torch.empty(self.padded, dtype=self.dtype, device=self.device)
        buffer[self.cut.total :].zero_()
        return buffer

    def view(self, buffer: Tensor, slot: Slot) -> Tensor:
        """Return a parameter's view of a buffer, in the parameter's shape."""
        return buffer[slot.start : slot.stop].view(slot.shape)

    def shard(self, buffer: Tensor, rank: int) -> Tensor:
        """Return a rank's piece of a buffer, including padding."""
        return buffer[rank * self.cut.shard : (rank + 1) * self.cut.shard]

    def pieces(self, rank: int) -> list[BucketPiece]:
        """Return the pieces of parameters in a rank's shard, in order."""
        first, last = self.cut.span(rank)
        pieces = []
        for slot in self.slots:
            start, stop = max(first, slot.start), min(last, slot.stop)
            if start < stop:
                pieces.append(
                    BucketPiece(slot, start - slot.start, stop - slot.start, start - first)
                )
        return pieces


class Partition:
    """The assignment of every parameter to a bucket, and of every bucket to n ranks."""

    def __init__(self, buckets: Sequence[Bucket], n: int):
        self.buckets, self.n = tuple(buckets), n
        self.where = {s.parameter: (b, s) for b in self.buckets for s in b.slots}

    @property
    def numel(self) -> int:
        """The number of elements of all parameters."""
        return sum(bucket.cut.total for bucket in self.buckets)

    @property
    def padded(self) -> int:
        """The number of elements in messages: parameters and padding."""
        return sum(bucket.padded for bucket in self.buckets)

    def slots(self) -> Iterator[Slot]:
        """Return the slots of all parameters."""
        return (slot for bucket in self.buckets for slot in bucket.slots)

    def boxes(self, parameter: nn.Parameter, rank: int) -> list[Box]:
        """Return the parts of a parameter on `rank`, in the order in which they appear in its
        shard."""
        bucket, slot = self.where[parameter]
        pieces = [piece for piece in bucket.pieces(rank) if piece.slot is slot]
        return [box for p in pieces for box in flat_boxes(slot.shape, p.start, p.stop)]


def partition(
    named: Iterable[tuple[str, nn.Parameter]], n: int, *, most_bytes: int = BUCKET
) -> Partition:
    """Fill buckets of at most `most_bytes` from the last parameter to the first. Gradients arrive
    in that order, so a bucket becomes full while the backward pass continues."""
    if most_bytes < 1:
        raise ValueError(f"most_bytes={most_bytes} must be 1 or more")
    open_slots: dict[tuple[torch.dtype, torch.device], list[Slot]] = {}
    closed: list[list[Slot]] = []
    seen: set[nn.Parameter] = set()
    for name, parameter in reversed(list(named)):
        if parameter in seen or not parameter.requires_grad or not parameter.numel():
            continue
        seen.add(parameter)
        kind = (parameter.dtype, parameter.device)
        slots = open_slots.setdefault(kind, [])
        start = slots[-1].stop if slots else 0
        if slots and (start + parameter.numel()) * parameter.element_size() > most_bytes:
            closed.append(open_slots.pop(kind))
            slots, start = open_slots.setdefault(kind, []), 0
        slots.append(Slot(name, parameter, start, parameter.shape))
    return Partition([Bucket(slots, n) for slots in [*closed, *open_slots.values()]], n)


def end_to_end(named: Iterable[tuple[str, nn.Parameter]]) -> list[list[Slot]]:
    """Concatenate the parameters, separately for each dtype and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Slot]] = {}
    for name, parameter in named:
        slots = kinds.setdefault((parameter.dtype, parameter.device), [])
        start = slots[-1].stop if slots else 0
        slots.append(Slot(name, parameter, start, parameter.shape))
    return list(kinds.values())


def through(box: Box, dim: int, spans: Sequence[tuple[int, int]]) -> list[Box]:
    """Map a box of a rank's tensor to boxes of the logical tensor, of which the rank holds these
    consecutive spans of `dim`."""
    hits, first = [], 0
    start, stop = box.offset[dim], box.offset[dim] + box.size[dim]
    for begin, end in spans:
        a, b = max(start, first), min(stop, first + end - begin)
        if a < b:
            hits.append((begin + a - first, b - a))
        first += end - begin
    before = [range(o, o + s) for o, s in zip(box.offset[:dim], box.size[:dim], strict=True)]
    # Several spans of a row are not adjacent, so each row becomes a separate box.
    rows = [box] if len(hits) < 2 else [_row(box, index) for index in itertools.product(*before)]
    return [_with(row, dim, offset, size) for row in rows for offset, size in hits]


def _row(box: Box, index: Sequence[int]) -> Box:
    d = len(index)
    return Box((*index, *box.offset[d:]), (*[1] * d, *box.size[d:]))


def _with(box: Box, dim: int, offset: int, size: int) -> Box:
    offsets, sizes = list(box.offset), list(box.size)
    offsets[dim], sizes[dim] = offset, size
    return Box(tuple(offsets), tuple(sizes))
