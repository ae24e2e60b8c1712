"""Parameters laid end to end in flat buckets, and each bucket cut over the ranks.

A bucket is filled up with padding to a multiple of the ranks, so that one message with equal pieces
carries it; padding is no parameter and nobody trains it. Lesson 09 derives it.
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
IN_FLIGHT = 2  # buckets whose messages may be under way: each holds memory of its own


@dataclass(frozen=True, eq=False)
class Slot:
    """Where a parameter lies in its bucket."""

    name: str
    parameter: nn.Parameter
    start: int
    shape: torch.Size  # at stage 3 a parameter's own is 0 between uses

    @property
    def numel(self) -> int:
        return self.shape.numel()

    @property
    def stop(self) -> int:
        return self.start + self.numel


class BucketPiece(NamedTuple):
    """What one rank's shard holds of a parameter: elements `start` to `stop` of the parameter,
    which lie from `at` on in the shard."""

    slot: Slot
    start: int
    stop: int
    at: int

    @property
    def numel(self) -> int:
        return self.stop - self.start

    def of(self, shard: Tensor) -> Tensor:
        """Its place in a shard."""
        return shard[self.at : self.at + self.numel]


class Bucket:
    """Some parameters of one dtype on one device, end to end, and the cut of them over n ranks."""

    def __init__(self, slots: Sequence[Slot], n: int):
        self.slots = tuple(slots)
        self.cut: FlatCut = flat(slots[-1].stop, n)
        first = slots[0].parameter
        self.dtype, self.device = first.dtype, first.device

    @property
    def padded(self) -> int:
        return self.cut.padded

    def buffer(self, dtype: torch.dtype | None = None) -> Tensor:
        """Zeros as long as the bucket with its padding."""
        return torch.zeros(self.padded, dtype=dtype or self.dtype, device=self.device)

    def room(self) -> Tensor:
        """A buffer to be filled: zeros in the padding alone."""
        buffer = torch.empty(self.padded, dtype=self.dtype, device=self.device)
        buffer[self.cut.total :].zero_()
        return buffer

    def view(self, buffer: Tensor, slot: Slot) -> Tensor:
        """A parameter's place in a buffer, in the parameter's shape."""
        return buffer[slot.start : slot.stop].view(slot.shape)

    def shard(self, buffer: Tensor, rank: int) -> Tensor:
        """The piece of a buffer that is a rank's, padding and all."""
        return buffer[rank * self.cut.shard : (rank + 1) * self.cut.shard]

    def pieces(self, rank: int) -> list[BucketPiece]:
        """The parameters that a rank's shard holds something of, in their order."""
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
    """Every parameter in a bucket, every bucket over n ranks."""

    def __init__(self, buckets: Sequence[Bucket], n: int):
        self.buckets, self.n = tuple(buckets), n
        self.where = {s.parameter: (b, s) for b in self.buckets for s in b.slots}

    @property
    def numel(self) -> int:
        """Numbers that are parameters."""
        return sum(bucket.cut.total for bucket in self.buckets)

    @property
    def padded(self) -> int:
        """Numbers that messages carry: parameters and padding."""
        return sum(bucket.padded for bucket in self.buckets)

    def slots(self) -> Iterator[Slot]:
        """Where every parameter lies."""
        return (slot for bucket in self.buckets for slot in bucket.slots)

    def boxes(self, parameter: nn.Parameter, rank: int) -> list[Box]:
        """The parts of a parameter that `rank` holds, in the order in which they lie in its
        shard."""
        bucket, slot = self.where[parameter]
        pieces = [piece for piece in bucket.pieces(rank) if piece.slot is slot]
        return [box for p in pieces for box in flat_boxes(slot.shape, p.start, p.stop)]


def partition(
    named: Iterable[tuple[str, nn.Parameter]], n: int, *, most_bytes: int = BUCKET
) -> Partition:
    """Buckets of at most `most_bytes`, filled from the last parameter to the first: gradients come
    in that order, so that a bucket is full while the backward still works on the ones before."""
    if most_bytes < 1:
        raise ValueError(f"most_bytes={most_bytes} has to be 1 or more")
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
    """The parameters one after another, those of each dtype and device by themselves."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Slot]] = {}
    for name, parameter in named:
        slots = kinds.setdefault((parameter.dtype, parameter.device), [])
        start = slots[-1].stop if slots else 0
        slots.append(Slot(name, parameter, start, parameter.shape))
    return list(kinds.values())


def through(box: Box, dim: int, spans: Sequence[tuple[int, int]]) -> list[Box]:
    """A box of a rank's tensor as boxes of the logical one, of which the rank holds these spans of
    `dim`, one after another."""
    hits, first = [], 0
    start, stop = box.offset[dim], box.offset[dim] + box.size[dim]
    for begin, end in spans:
        a, b = max(start, first), min(stop, first + end - begin)
        if a < b:
            hits.append((begin + a - first, b - a))
        first += end - begin
    before = [range(o, o + s) for o, s in zip(box.offset[:dim], box.size[:dim], strict=True)]
    # Several spans of a row come one after another, so each row is then a box of its own.
    rows = [box] if len(hits) < 2 else [_row(box, index) for index in itertools.product(*before)]
    return [_with(row, dim, offset, size) for row in rows for offset, size in hits]


def _row(box: Box, index: Sequence[int]) -> Box:
    d = len(index)
    return Box((*index, *box.offset[d:]), (*[1] * d, *box.size[d:]))


def _with(box: Box, dim: int, offset: int, size: int) -> Box:
    offsets, sizes = list(box.offset), list(box.size)
    offsets[dim], sizes[dim] = offset, size
    return Box(tuple(offsets), tuple(sizes))
