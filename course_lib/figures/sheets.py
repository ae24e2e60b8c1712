"""Where each rank's block of a tensor is: cells of a grid, from a layout and the axes' sizes.

Leading dims are folded into rows (`X[b, s, h]` has b·s rows), the last dim is the columns. A
partial sum is several sheets, one for each summand. `statement.py` draws them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import NamedTuple

from course_lib.layout import Dim, Layout

SEQUENCES = 2  # how many of a folded dim are drawn, where it is not sharded


class Cell(NamedTuple):
    """A block: its place in units of the grid, and the ranks that hold it."""

    row: int
    column: int
    ranks: tuple[int, ...]


class Sheets(NamedTuple):
    """A tensor on its ranks: sheets of equal cells, more than one for a partial sum."""

    layout: Layout
    rows: int
    columns: int
    every: int  # after as many rows comes the next of the folded dim
    cells: tuple[tuple[Cell, ...], ...]  # by sheet
    world: int

    @property
    def replicated(self) -> bool:
        return len(self.cells) == 1 and all(len(c.ranks) == self.world for c in self.cells[0])

    @property
    def one_block(self) -> bool:
        """Whether all cells are on the same ranks: one label says it."""
        return len({cell.ranks for cell in self.cells[0]}) == 1


def sheets(layout: Layout, axes: Mapping[str, int]) -> Sheets:
    """The blocks of `layout`; `axes` holds the size of each axis, outermost first in rank order."""
    *leading, last = layout.dims if layout.dims else (Dim("1"),)
    counts = [_units(dim, axes) for dim in leading]
    if len(leading) > 1 and counts[-1] > 1:  # each sequence is sharded: show that there are several
        counts[0] = max(counts[0], SEQUENCES)
    columns = _units(last, axes)
    found = []
    for summand in product(*(range(axes[axis]) for axis in layout.owed)):
        fixed = dict(zip(layout.owed, summand, strict=True))
        cells = []
        for row, units in enumerate(product(*map(range, counts))):
            at = dict(fixed)
            for dim, unit in zip(leading, units, strict=True):
                at |= _coordinates(dim, unit, axes)
            for column in range(columns):
                here = at | _coordinates(last, column, axes)
                cells.append(Cell(row, column, _holders(here, axes)))
        found.append(tuple(cells))
    every = counts[-1] if len(leading) > 1 else prod(counts)
    return Sheets(layout, prod(counts), columns, every, tuple(found), prod(axes.values()))


def coordinates(rank: int, axes: Mapping[str, int]) -> dict[str, int]:
    """Where a rank is on the mesh: the last axis runs fastest."""
    found = {}
    for axis, size in reversed(list(axes.items())):
        rank, found[axis] = divmod(rank, size)
    return found


def _units(dim: Dim, axes: Mapping[str, int]) -> int:
    return prod(axes[axis] for axis in dim.axes)


def _coordinates(dim: Dim, unit: int, axes: Mapping[str, int]) -> dict[str, int]:
    """Which place on each of the dim's axes holds this unit of it; the first axis is outermost."""
    found = {}
    for axis in reversed(dim.axes):
        unit, found[axis] = divmod(unit, axes[axis])
    return found


def _holders(here: Mapping[str, int], axes: Mapping[str, int]) -> tuple[int, ...]:
    world = prod(axes.values())
    return tuple(r for r in range(world) if here.items() <= coordinates(r, axes).items())
