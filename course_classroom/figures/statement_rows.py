"""A statement's picture before it is painted: tensors, signs and collectives in order, the same in
words, and where each rank's block of a tensor is.

Leading dims are folded into rows (`X[b, s, h]` has b·s rows), the last dim is the columns. A
partial sum is several sheets, one for each summand. `statement.py` paints them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from course_classroom.figures.needed import Move, check_result, collectives, completed
from course_lib.layout import Layout, Statement

ORDER = ("pp", "dp", "cp", "ep", "tp")  # of known axes in the ranks' numbers, outermost first
NONE = "no collective"
SEQUENCES = 2  # how many of a folded dim are drawn, where it is not sharded


class Step(NamedTuple):
    """What comes next in a row: a tensor, or the sign or the collectives before it."""

    layout: Layout | None = None
    sign: str = ""
    moves: tuple[Move, ...] = ()


def steps(lines: Sequence[str]) -> list[list[Step]]:
    """The rows as they are drawn; a tensor that changes its layout from row to row is moved."""
    rows: list[list[Step]] = []
    last: dict[str, tuple[Layout, int | None]] = {}  # name → layout, the row that computed it
    for line in lines:
        inputs, *results = (_side(part, line) for part in line.split("->"))
        contracted = check_result(inputs, results[0][0]) if results and len(inputs) > 1 else ()
        row: list[Step] = []
        for i, layout in enumerate(inputs):
            if i:
                row.append(Step(sign="×" if contracted else ","))
            before, made_in = last.get(layout.name, (layout, None))
            moves = collectives(before, layout)
            if moves and made_in is not None:
                rows[made_in] += [Step(moves=moves), Step(layout)]
            elif moves:
                row += [Step(before), Step(moves=moves)]
            row.append(Step(layout))
            last[layout.name] = (layout, None)
        for several in results:
            if len(several) > 1:
                raise ValueError(
                    f"{line!r}: {len(several)} results after an arrow; one result a row, and "
                    "several statements in a list"
                )
            result = several[0]
            row += _result(inputs, result)
            inputs = [result]
            last[result.name] = (result, len(rows))
        rows.append(row)
    for layout, made_in in last.values():
        if layout.owed and (made_in is not None or len(last) == 1):
            whole = completed(layout)
            rows[made_in or 0] += [Step(moves=collectives(layout, whole)), Step(whole)]
    for row in rows:
        if any(s.sign == "=" for s in row) and not any(s.moves for s in row):
            row.append(Step(sign=NONE))
    return rows


def axis_sizes(layouts: Sequence[Layout], axes: Mapping[str, int]) -> dict[str, int]:
    """The size of each axis, outermost first; one without a size, or of one rank, is refused."""
    used = list(dict.fromkeys(axis for layout in layouts for axis in layout.axes))
    given = axes or ({"tp": 2} if set(used) <= {"tp"} else {})
    have = ", ".join(f"{name}={size}" for name, size in given.items()) or "none"
    for axis in used:
        if axis not in given:
            where = next(str(layout) for layout in layouts if axis in layout.axes)
            raise ValueError(
                f"{where}: the axis {axis} has no size; axes given: {have}. Write, for example, "
                f"statement(…, {axis}=2)"
            )
    for axis, size in given.items():
        if size < 1 or (size == 1 and axis in used):
            raise ValueError(
                f"{axis}={size}: an axis of {size} shards nothing; give 2 or more, or write the "
                f"statement without {axis}"
            )
    kept = {axis: size for axis, size in given.items() if size > 1}
    if not kept:
        raise ValueError(f"{have}: one rank holds all; give an axis of 2 or more, as tp=2")
    return dict(sorted(kept.items(), key=lambda p: ORDER.index(p[0]) if p[0] in ORDER else -1))


def caption(layout: Layout, sizes: Mapping[str, int]) -> list[str]:
    """The field's words for a layout, a line for each of them."""
    lines = [f"{d.name} sharded over {', '.join(d.axes)}" for d in layout.dims if d.axes]
    if layout.owed:
        lines.append(f"partial sum over {', '.join(layout.owed)}")
    rest = [axis for axis in sizes if axis not in layout.axes]
    if rest:
        lines.append(f"replicated over {', '.join(rest)}" if len(sizes) > 1 else "replicated")
    return lines


def in_words(rows: Sequence[Sequence[Step]], sizes: Mapping[str, int]) -> str:
    """The picture's alternative text."""
    world = prod(sizes.values())
    if len(sizes) == 1:
        where = f"Which of {world} ranks holds which block: block i of a sharded dim is on rank i"
    else:
        mesh = "; ".join(f"rank {rank} is {place(rank, sizes)}" for rank in range(world))
        where = f"Which of {world} ranks holds which block, on a mesh where {mesh}"
    told = " ".join(_row(row, sizes) for row in rows)
    return f"{where}; every rank holds all of what is replicated. {told}"


def place(rank: int, sizes: Mapping[str, int]) -> str:
    """Where a rank is on the mesh, in words: "dp 0, tp 1"."""
    return ", ".join(f"{axis} {at}" for axis, at in coordinates(rank, sizes).items())


def _row(row: Sequence[Step], sizes: Mapping[str, int]) -> str:
    said = []
    for step in row:
        if step.layout:
            said.append(f" {step.layout} ({_tensor(step.layout, sizes)})")
        elif step.moves:
            moves = " and ".join(map(str, step.moves))
            sums = any(move.op in ("all-reduce", "reduce-scatter") for move in step.moves)
            said.append(f": {moves} {'completes' if sums else 'makes'} it,")
        else:
            said.append(_SIGNS[step.sign])
    return "".join(said).strip() + "."


_SIGNS = {"×": " times", ",": ",", "=": " gives", NONE: ": no collective is needed"}
_SIGNS["→"] = " becomes, on each rank without a message,"


def _tensor(layout: Layout, sizes: Mapping[str, int]) -> str:
    found = ", ".join(caption(layout, sizes))
    for axis in layout.owed:
        found = found.replace("partial sum over", f"partial sum on each of {sizes[axis]} ranks of")
    return found


def _result(inputs: Sequence[Layout], result: Layout) -> list[Step]:
    """The sign or the collective, and the result."""
    same = [d.name for d in inputs[0].dims] == [d.name for d in result.dims]
    if len(inputs) > 1 or not same:
        check_result(inputs, result)
        return [Step(sign="="), Step(result)]
    moves = collectives(inputs[0], result)
    return [Step(moves=moves) if moves else Step(sign="→"), Step(result)]


def _side(part: str, line: str) -> list[Layout]:
    if not part.strip():
        raise ValueError(f"{line!r}: nothing is written on one side of an arrow")
    found = list(Statement.parse(part).layouts)
    for layout in found:
        if not 1 <= len(layout.dims) <= 3:
            raise ValueError(
                f"{layout} cannot be drawn: 1 to 3 dims, and not {len(layout.dims)}; fold some "
                "into one, as a for heads times their width"
            )
    return found


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
    wides: tuple[int, ...] = ()  # of the columns, in a unit of their own, where they are not equal
    highs: tuple[int, ...] = ()

    @property
    def replicated(self) -> bool:
        return len(self.cells) == 1 and all(len(c.ranks) == self.world for c in self.cells[0])


def sheets(layout: Layout, axes: Mapping[str, int]) -> Sheets:
    """The blocks of `layout`; `axes` holds the size of each axis, outermost first in rank order."""
    world = prod(axes.values())
    places = [coordinates(rank, axes) for rank in range(world)]
    *leading, last = layout.dims
    counts = [prod(axes[axis] for axis in dim.axes) for dim in layout.dims]
    columns = counts.pop()
    if len(leading) > 1 and counts[-1] > 1:  # each sequence is sharded: show that there are several
        counts[0] = max(counts[0], SEQUENCES)
    found = []
    for summand in product(*(range(axes[axis]) for axis in layout.owed)):
        fixed = dict(zip(layout.owed, summand, strict=True))
        cells = []
        for row, units in enumerate(product(*map(range, counts))):
            for column in range(columns):
                here = dict(fixed)
                for dim, unit in zip((*leading, last), (*units, column), strict=True):
                    # which place on each of the dim's axes holds this unit of it
                    here |= coordinates(unit, {axis: axes[axis] for axis in dim.axes})
                ranks = [rank for rank, at in enumerate(places) if here.items() <= at.items()]
                cells.append(Cell(row, column, tuple(ranks)))
        found.append(tuple(cells))
    every = counts[-1] if len(leading) > 1 else prod(counts)
    return Sheets(layout, prod(counts), columns, every, tuple(found), world)


def coordinates(rank: int, axes: Mapping[str, int]) -> dict[str, int]:
    """Where a rank is on the mesh: the last axis runs fastest."""
    found = {}
    for axis, size in reversed(axes.items()):
        rank, found[axis] = divmod(rank, size)
    return dict(reversed(found.items()))
