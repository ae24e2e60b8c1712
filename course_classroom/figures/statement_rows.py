"""The content of a statement's picture: its tensors, signs and collectives in order, their
description in words, and the place of each rank's block in a tensor.

Leading dims are folded into rows (`X[b, s, h]` has b·s rows); the last dim is the columns. A
partial sum has several sheets, one for each summand. `statement.py` paints them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from course_classroom.figures.needed import Move, check_result, collectives, completed
from course_lib.layout import Layout, Statement

ORDER = ("pp", "dp", "cp", "ep", "tp")  # order of known axes in rank numbers, outermost first
NONE = "no collective"
SEQUENCES = 2  # drawn entries of a folded dim that is not sharded


class Step(NamedTuple):
    """An item in a row: a tensor, or the sign or collectives before a tensor."""

    layout: Layout | None = None
    sign: str = ""
    moves: tuple[Move, ...] = ()


def steps(lines: Sequence[str]) -> list[list[Step]]:
    """Return the rows to draw, with collectives for tensors whose layout changes between rows."""
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
                    f"{line!r}: {len(several)} results after an arrow. Write one result per row, "
                    "and several statements as a list"
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
    """Return each axis's size, outermost first; raise an error for a missing size or size 1."""
    used = list(dict.fromkeys(axis for layout in layouts for axis in layout.axes))
    given = axes or ({"tp": 2} if set(used) <= {"tp"} else {})
    have = ", ".join(f"{name}={size}" for name, size in given.items()) or "none"
    for axis in used:
        if axis not in given:
            where = next(str(layout) for layout in layouts if axis in layout.axes)
            raise ValueError(
                f"{where}, but the axis {axis} has no size (axes given: {have}). Write, for "
                f"example, statement(…, {axis}=2)"
            )
    for axis, size in given.items():
        if size < 1 or (size == 1 and axis in used):
            raise ValueError(
                f"{axis}={size}: an axis of size {size} shards nothing. Use 2 or more, or write "
                f"the statement without {axis}"
            )
    kept = {axis: size for axis, size in given.items() if size > 1}
    if not kept:
        raise ValueError(f"{have}: one rank holds all. Use an axis of size 2 or more, such as tp=2")
    return dict(sorted(kept.items(), key=lambda p: ORDER.index(p[0]) if p[0] in ORDER else -1))


def caption(layout: Layout, sizes: Mapping[str, int]) -> list[str]:
    """Describe a layout in the field's words, one line for each property."""
    lines = [f"{d.name} sharded over {', '.join(d.axes)}" for d in layout.dims if d.axes]
    if layout.owed:
        lines.append(f"partial sum over {', '.join(layout.owed)}")
    rest = [axis for axis in sizes if axis not in layout.axes]
    if rest:
        lines.append(f"replicated over {', '.join(rest)}" if len(sizes) > 1 else "replicated")
    return lines


def in_words(rows: Sequence[Sequence[Step]], sizes: Mapping[str, int]) -> str:
    """Return the picture's alternative text."""
    world = prod(sizes.values())
    if len(sizes) == 1:
        where = f"The blocks of {world} ranks: block i of a sharded dim is on rank i"
    else:
        mesh = "; ".join(f"rank {rank} is {place(rank, sizes)}" for rank in range(world))
        where = f"The blocks of {world} ranks, on a mesh where {mesh}"
    told = " ".join(_row(row, sizes) for row in rows)
    return f"{where}; every rank holds all of a replicated tensor. {told}"


def place(rank: int, sizes: Mapping[str, int]) -> str:
    """Return the coordinates of a rank on the mesh in words: "dp 0, tp 1"."""
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
    """Return the sign or the collectives, followed by the result."""
    same = [d.name for d in inputs[0].dims] == [d.name for d in result.dims]
    if len(inputs) > 1 or not same:
        check_result(inputs, result)
        return [Step(sign="="), Step(result)]
    moves = collectives(inputs[0], result)
    return [Step(moves=moves) if moves else Step(sign="→"), Step(result)]


def _side(part: str, line: str) -> list[Layout]:
    if not part.strip():
        raise ValueError(f"{line!r}: one side of an arrow is empty")
    found = list(Statement.parse(part).layouts)
    for layout in found:
        if not 1 <= len(layout.dims) <= 3:
            raise ValueError(
                f"{layout} cannot be drawn: it has {len(layout.dims)} dims instead of 1 to 3. Fold "
                "some into one, such as a for heads times their width"
            )
    return found


class Cell(NamedTuple):
    """A block: its place in grid units, and the ranks that hold it."""

    row: int
    column: int
    ranks: tuple[int, ...]


class Sheets(NamedTuple):
    """A tensor on its ranks: sheets of equal cells, more than one for a partial sum."""

    layout: Layout
    rows: int
    columns: int
    every: int  # the number of rows for each entry of the folded dim
    cells: tuple[tuple[Cell, ...], ...]  # by sheet
    world: int
    wides: tuple[int, ...] = ()  # widths of unequal columns, in a separate unit
    highs: tuple[int, ...] = ()

    @property
    def replicated(self) -> bool:
        return len(self.cells) == 1 and all(len(c.ranks) == self.world for c in self.cells[0])


def sheets(layout: Layout, axes: Mapping[str, int]) -> Sheets:
    """Return the blocks of `layout`; `axes` has the size of each axis, outermost first."""
    world = prod(axes.values())
    places = [coordinates(rank, axes) for rank in range(world)]
    *leading, last = layout.dims
    counts = [prod(axes[axis] for axis in dim.axes) for dim in layout.dims]
    columns = counts.pop()
    if len(leading) > 1 and counts[-1] > 1:  # each sequence is sharded, so draw more than one
        counts[0] = max(counts[0], SEQUENCES)
    found = []
    for summand in product(*(range(axes[axis]) for axis in layout.owed)):
        fixed = dict(zip(layout.owed, summand, strict=True))
        cells = []
        for row, units in enumerate(product(*map(range, counts))):
            for column in range(columns):
                here = dict(fixed)
                for dim, unit in zip((*leading, last), (*units, column), strict=True):
                    # coordinates on the dim's axes that hold this unit
                    here |= coordinates(unit, {axis: axes[axis] for axis in dim.axes})
                ranks = [rank for rank, at in enumerate(places) if here.items() <= at.items()]
                cells.append(Cell(row, column, tuple(ranks)))
        found.append(tuple(cells))
    every = counts[-1] if len(leading) > 1 else prod(counts)
    return Sheets(layout, prod(counts), columns, every, tuple(found), world)


def coordinates(rank: int, axes: Mapping[str, int]) -> dict[str, int]:
    """Return a rank's coordinates on the mesh; the last axis varies fastest."""
    found = {}
    for axis, size in reversed(axes.items()):
        rank, found[axis] = divmod(rank, size)
    return dict(reversed(found.items()))
