"""Boxes: a shard's part of the logical tensor, as an offset and a size in every dim.

A dim sharded over axes gives one box; a flat range of a row-major tensor gives several. Checkpoints
and ZeRO's partitions use boxes. Lesson 02 draws boxes, and lessons 09 and 14 store them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from course_lib.layout.cut import span
from course_lib.layout.notation import Dim, Layout


class Box(NamedTuple):
    """A box that has, in every dim d, `size[d]` elements starting at `offset[d]`."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def numel(self) -> int:
        """The number of elements in the box."""
        return math.prod(self.size)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The index into the logical tensor, as in `whole[box.slices]`."""
        return tuple(
            slice(start, start + length)
            for start, length in zip(self.offset, self.size, strict=True)
        )


def dim_span(total: int, dim: Dim, coords: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Return start and stop of this rank's part of a dim of logical size `total`."""
    start, stop = 0, total
    for axis in dim.axes:
        if axis not in coords:
            known = ", ".join(sorted(coords)) or "none"
            raise ValueError(f"{dim} is sharded over the axis {axis}, but axes= has {known}")
        rank, world = coords[axis]
        inner_start, inner_stop = span(stop - start, world, rank)
        start, stop = start + inner_start, start + inner_stop
    return start, stop


def box(shape: Sequence[int], layout: Layout | str, coords: Mapping[str, tuple[int, int]]) -> Box:
    """Return the box of a logical tensor of `shape` that one rank holds.

    `coords` gives (rank, length) for each axis: `{"dp": (0, 2), "tp": (1, 3)}`.
    """
    layout = Layout.parse(layout) if isinstance(layout, str) else layout
    if len(shape) != len(layout.dims):
        raise ValueError(
            f"{layout} has {len(layout.dims)} dims, but the shape {tuple(shape)} has {len(shape)}"
        )
    spans = [dim_span(n, dim, coords) for n, dim in zip(shape, layout.dims, strict=True)]
    return Box(tuple(a for a, _ in spans), tuple(b - a for a, b in spans))


def flat_boxes(shape: Sequence[int], start: int, stop: int) -> list[Box]:
    """Return the boxes of elements `start` to `stop` of a row-major tensor, in order.

    There are at most 2·ndim − 1 boxes: the end of a row, full rows, the beginning of a row, and so
    on in outer dims. Joined in this order, they are the range.
    """
    shape = tuple(shape)
    total = math.prod(shape)
    if not 0 <= start <= stop <= total:
        raise ValueError(f"{start} to {stop} is not a range of the {total} elements of {shape}")
    if start == stop:
        return []
    if not shape:
        return [Box((), ())]
    row = math.prod(shape[1:])
    first, last = start // row, stop // row  # first row, first row not filled
    if first == last:  # within one row
        return _inside(first, flat_boxes(shape[1:], start - first * row, stop - first * row))
    boxes: list[Box] = []
    if start > first * row:
        boxes += _inside(first, flat_boxes(shape[1:], start - first * row, row))
        first += 1
    if last > first:
        whole = (0,) * (len(shape) - 1)
        boxes.append(Box((first, *whole), (last - first, *shape[1:])))
    if stop > last * row:
        boxes += _inside(last, flat_boxes(shape[1:], 0, stop - last * row))
    return boxes


def _inside(row: int, inner: list[Box]) -> list[Box]:
    return [Box((row, *box.offset), (1, *box.size)) for box in inner]
