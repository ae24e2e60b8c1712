"""Boxes: which part of the logical tensor a shard is, as an offset and a size in every dim.

A dim sharded over axes gives one box, a flat range of a row-major tensor gives several; checkpoints
and ZeRO's partitions speak in boxes. Lesson 02 draws them, lessons 09 and 14 store them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from course_lib.layout.cut import span
from course_lib.layout.notation import Dim, Layout


class Box(NamedTuple):
    """`size[d]` elements from `offset[d]` on, in every dim d."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many elements the box covers."""
        return math.prod(self.size)

    @property
    def slices(self) -> tuple[slice, ...]:
        """For indexing the logical tensor: `whole[box.slices]`."""
        return tuple(
            slice(start, start + length)
            for start, length in zip(self.offset, self.size, strict=True)
        )


def dim_span(total: int, dim: Dim, coords: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Start and stop of a dim of logical size `total` on the rank at `coords`, axis by axis."""
    start, stop = 0, total
    for axis in dim.axes:
        if axis not in coords:
            known = ", ".join(sorted(coords)) or "none"
            raise ValueError(f"{dim} is sharded over the axis {axis}; the axes given are: {known}")
        rank, world = coords[axis]
        inner_start, inner_stop = span(stop - start, world, rank)
        start, stop = start + inner_start, start + inner_stop
    return start, stop


def box(shape: Sequence[int], layout: Layout | str, coords: Mapping[str, tuple[int, int]]) -> Box:
    """The box of a logical tensor of `shape` that one rank holds.

    `coords` gives for each axis (rank along it, length of it): `{"dp": (0, 2), "tp": (1, 3)}`.
    """
    layout = Layout.parse(layout) if isinstance(layout, str) else layout
    if len(shape) != len(layout.dims):
        raise ValueError(
            f"{layout} has {len(layout.dims)} dims, the shape {tuple(shape)} has {len(shape)}"
        )
    spans = [dim_span(n, dim, coords) for n, dim in zip(shape, layout.dims, strict=True)]
    return Box(tuple(a for a, _ in spans), tuple(b - a for a, b in spans))


def flat_boxes(shape: Sequence[int], start: int, stop: int) -> list[Box]:
    """The boxes that elements `start` to `stop` of a row-major tensor fill, in order.

    At most 2·ndim − 1 of them: the rest of a row, whole rows, the beginning of a row, and the same
    one dim further out. Read one after another they give the range back.
    """
    shape = tuple(shape)
    total = math.prod(shape)
    if not 0 <= start <= stop <= total:
        raise ValueError(f"{start} to {stop} is no range in the {total} elements of shape {shape}")
    if start == stop:
        return []
    if not shape:
        return [Box((), ())]
    row = math.prod(shape[1:])
    first, last = start // row, stop // row  # the row of the first element, the first not filled
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
