"""Which rank holds which block of a matrix: a row for each product, the matrices to scale.

Drawn from the ranks' own tensors and their layouts in the notation; what a layout says and the
tensors do not keep is refused. Lesson 02 draws its two layouts, lesson 04 the two in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.figures.colours import EDGE, QUIET, REPLICATED, Picture, draw, of_rank, rank_look
from course_lib.figures.needed import Move, collectives, completed
from course_lib.figures.shapes import box, in_inches, label
from course_lib.figures.statement import MOVE, between
from course_lib.layout import Layout, Statement, check

LARGEST = 1.35  # inches of the longest dim in a picture
SMALLEST = 0.2  # and of the shortest: a bias is a line otherwise
SHEET = 0.09  # inches by which each sheet of a sum lies beside the one before


@dataclass(frozen=True)
class Matrix:
    """One tensor as it is on the ranks: the size of each block along the dim that is sharded."""

    layout: Layout
    shape: tuple[int, int]  # of the logical tensor; one dim is a row
    cut: int | None  # 0: its rows are sharded, 1: its columns
    pieces: tuple[int, ...]  # of each rank, along that dim
    owed: bool

    @property
    def size(self) -> str:
        return " × ".join(str(n) for n in self.shape[-len(self.layout.dims) :])

    @property
    def placement(self) -> str:
        if self.owed:
            return "partial sum"
        return "replicated" if self.cut is None else "sharded"

    @property
    def moves(self) -> tuple[Move, ...]:
        """What a partial sum still needs."""
        return collectives(self.layout, completed(self.layout))


def blocks(
    statements: str | Sequence[str],
    held: Sequence[Mapping[str, Tensor]],
    *,
    axis: str = "tp",
    title: str = "",
) -> Picture:
    """Draw `statements`, such as "X[b, h] W[h, f@tp] -> Y[b, f@tp]", as `held[rank]` has them.

    A block has the colour of the rank that holds it; what is replicated is grey; a partial sum is a
    sheet for each rank's summand, and the all-reduce that a result needs follows it. Tensors have
    one dim or two, and are sharded over one axis, or replicated, or a partial sum.
    """
    lines = [statements] if isinstance(statements, str) else list(statements)
    read = [Statement.parse(line) for line in lines]
    rows = [(s, [_matrix(one, held, axis) for one in s.layouts]) for s in read]
    for line, (statement, _) in zip(lines, rows, strict=True):
        _hold(line, statement, held, axis)
    longest = max(length for _, ms in rows for m in ms for length in m.shape)
    scale = LARGEST / longest
    width = max(_width(row, scale, len(held)) for row in rows)
    heights = [max(_high(m, scale, len(held)) for m in ms) + 0.72 for _, ms in rows]

    def paint(figure) -> None:
        axis, top = in_inches(figure), 0.05
        for (statement, matrices), height in zip(rows, heights, strict=True):
            middle, below = top + (height - 0.5) / 2, top + height - 0.34
            _line(axis, statement, matrices, middle, below, scale, len(held))
            top += height

    return draw((width, sum(heights) + 0.05), _in_words(rows), paint, title)


def _matrix(layout: Layout, held: Sequence[Mapping[str, Tensor]], axis: str) -> Matrix:
    tensors = [mine[layout.name] for mine in held if layout.name in mine]
    if len(tensors) != len(held):
        raise ValueError(f"{layout}: not every rank has handed over its {layout.name}")
    if not 1 <= len(layout.dims) <= 2 or any(axis != one for one in layout.axes):
        raise ValueError(
            f"{layout} cannot be drawn: a tensor of one dim or two, replicated, or sharded over "
            f"{axis}, or a partial sum over it"
        )
    dims = [dim.axes == (axis,) for dim in layout.dims]
    at = dims.index(True) if any(dims) else None
    pieces = tuple(t.shape[at] for t in tensors) if at is not None else ()
    shape = list(tensors[0].shape)
    if at is not None:
        shape[at] = sum(pieces)
    if len(shape) == 1:
        shape, at = [1, *shape], None if at is None else 1
    return Matrix(layout, (shape[0], shape[1]), at, pieces, bool(layout.owed))


def _hold(line: str, statement: Statement, held: Sequence[Mapping[str, Tensor]], axis: str) -> None:
    """Refuse what the shapes and values of the tensors do not bear out."""
    n = len(held)
    names = [layout.name for layout in statement.layouts]
    sizes: dict[str, int] = {}
    for layout in statement.layouts:
        for i, dim in enumerate(layout.dims):
            if not dim.name.isdigit():
                lengths = [mine[layout.name].shape[i] for mine in held]
                sizes.setdefault(dim.name, sum(lengths) if dim.axes else lengths[0])
    for rank, mine in enumerate(held):
        parts = {name: mine[name] for name in names}
        check(line, axes={axis: (rank, n)}, sizes=sizes, **parts)
    for layout in statement.layouts:
        if layout.cut_axes or n == 1:
            continue
        first, *others = (mine[layout.name].detach().cpu().double() for mine in held)
        alike = [torch.allclose(first, other, rtol=1e-5, atol=1e-8) for other in others]
        if layout.owed and any(alike):
            raise ValueError(
                f"{layout} is declared a partial sum, and two ranks hold the same values; was it "
                "all-reduced already?"
            )
        if not layout.owed and not all(alike):
            raise ValueError(
                f"{layout} is declared replicated, and the ranks hold different values"
            )


def _box(matrix: Matrix, scale: float) -> tuple[float, float]:
    """Width and height of a matrix, in inches."""
    high, wide = (max(SMALLEST, length * scale) for length in matrix.shape)
    return wide, high


def _high(matrix: Matrix, scale: float, n: int) -> float:
    return _box(matrix, scale)[1] + SHEET * (n - 1) * matrix.owed


def _step(matrix: Matrix, scale: float, n: int) -> float:
    """How much of a line a matrix takes: itself, or its name where that is longer."""
    wide = _box(matrix, scale)[0] + SHEET * (n - 1) * matrix.owed
    text = max(0.085 * len(str(matrix.layout)), 0.066 * len(_below(matrix)))
    return max(wide, text) + 0.42


def _below(matrix: Matrix) -> str:
    return f"{matrix.size}, {matrix.placement}"


def _sum_of(matrix: Matrix) -> Matrix:
    """The matrix after its all-reduce."""
    return Matrix(completed(matrix.layout), matrix.shape, None, (), False)


def _needs(statement: Statement, i: int) -> bool:
    """Whether the i-th matrix is a result, and drawn with the collective that it needs."""
    first = len(statement.inputs) if statement.outputs else 0
    return i >= first and bool(statement.layouts[i].owed)


def _width(row: tuple[Statement, list[Matrix]], scale: float, n: int) -> float:
    statement, matrices = row
    needed = [m for i, m in enumerate(matrices) if _needs(statement, i)]
    more = sum(MOVE + _step(_sum_of(m), scale, n) for m in needed)
    return sum(_step(m, scale, n) for m in matrices) + more + 0.25


def _line(axis, statement, matrices, middle, below, scale, n: int) -> None:
    left = 0.2
    for i, matrix in enumerate(matrices):
        if i:
            sign = "=" if i == len(statement.inputs) else "×" if i < len(statement.inputs) else ","
            between(axis, (), sign, left - 0.02, left - 0.02, middle)
        left = _named(axis, matrix, left, middle, below, scale, n)
        if _needs(statement, i):
            between(axis, matrix.moves, "", left, left + MOVE, middle)
            left = _named(axis, _sum_of(matrix), left + MOVE, middle, below, scale, n)


def _named(axis, matrix: Matrix, left, middle, below, scale, n: int) -> float:
    """A matrix with its layout and size below; where the next one begins."""
    step = _step(matrix, scale, n)
    centre = left + step / 2
    _draw_matrix(axis, matrix, centre, middle, scale, n)
    label(axis, centre, below, str(matrix.layout), fontsize=8.5, family="DejaVu Sans Mono")
    label(axis, centre, below + 0.17, _below(matrix), fontsize=7.5, color=QUIET)
    return left + step


def _draw_matrix(axis, matrix: Matrix, centre: float, middle: float, scale: float, n: int) -> None:
    wide, high = _box(matrix, scale)
    spread = SHEET * (n - 1) * matrix.owed
    left, top = centre - (wide + spread) / 2, middle - (high + spread) / 2
    if matrix.owed:
        for rank in reversed(range(n)):  # rank 0 in front
            by = SHEET * rank
            _tile(axis, left + by, top + spread - by, wide, high, rank, "")
        parts = " + ".join(map(str, range(n)))
        at = (left + wide / 2, top + spread + high / 2)
        label(axis, *at, parts, on=of_rank(0), fontweight="bold")
        return
    if matrix.cut is None:
        box(axis, left, top, wide, high, facecolor=REPLICATED, edgecolor=EDGE)
        label(axis, left + wide / 2, top + high / 2, "all", on=REPLICATED, fontweight="bold")
        return
    start, whole = 0, matrix.shape[matrix.cut]
    for rank, piece in enumerate(matrix.pieces):
        share, before = piece / whole, start / whole
        if matrix.cut:
            _tile(axis, left + before * wide, top, share * wide, high, rank, str(rank))
        else:
            _tile(axis, left, top + before * high, wide, share * high, rank, str(rank))
        start += piece


def _tile(axis, left, top, wide, high, rank: int, text: str) -> None:
    if not wide or not high:
        return
    box(axis, left, top, wide, high, **{**rank_look(rank), "linewidth": 1.0})
    if text:
        label(axis, left + wide / 2, top + high / 2, text, on=of_rank(rank), fontweight="bold")


def _in_words(rows: list[tuple[Statement, list[Matrix]]]) -> str:
    told = []
    for statement, matrices in rows:
        needed = [_needs(statement, i) for i in range(len(matrices))]
        said = "; ".join(map(_told, matrices, needed))
        told.append(f"{statement}: {said}.")
    return f"Matrices to scale, each block in the colour of its rank. {' '.join(told)}"


def _told(matrix: Matrix, needed: bool) -> str:
    name = f"{matrix.layout.name}, {matrix.size},"
    if matrix.owed:
        over = " and ".join(f"an {move.op} over {move.axis}" for move in matrix.moves)
        after = f": {over} completes it" if needed else ""
        return f"{name} is a partial sum on each rank{after}"
    if matrix.cut is None:
        return f"{name} is replicated"
    what = "rows" if matrix.cut == 0 else "columns"
    if matrix.shape[0] == 1 and len(matrix.layout.dims) == 1:
        what = "elements"
    shares = ", ".join(f"{piece} on rank {r}" for r, piece in enumerate(matrix.pieces))
    return f"{name} has its {what} sharded: {shares}"
