"""Blocks of matrices by rank: a row for each product, the matrices drawn to scale.

The picture uses the ranks' tensors and their layouts, and refuses tensors that contradict a layout.
Lesson 02 draws its two layouts, and lesson 04 draws both in one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_classroom.figures.colours import Picture, draw
from course_classroom.figures.needed import collectives, completed
from course_classroom.figures.shapes import in_inches
from course_classroom.figures.statement import Item, paint_rows, size_of
from course_classroom.figures.statement_rows import sheets
from course_lib.layout import Layout, Statement, check

LARGEST = 1.35  # inches of the longest dim in a picture
SMALLEST = 0.2  # and of the shortest; otherwise a bias would be a line


class Matrix(NamedTuple):
    """A tensor on the ranks, with the size of each rank's block along the sharded dim."""

    layout: Layout
    shape: tuple[int, ...]  # of the logical tensor
    cut: int | None  # the dim that is sharded
    pieces: tuple[int, ...]  # of each rank along that dim; ones if it is not sharded

    @property
    def size(self) -> str:
        return " × ".join(map(str, self.shape))


def blocks(
    statements: str | Sequence[str], held: Sequence[Mapping[str, Tensor]], *, title: str = ""
) -> Picture:
    """Draw `statements`, such as "X[b, h] W[h, f@tp] -> Y[b, f@tp]", with each `held[rank]`.

    A block has the colour of the rank that holds it. Replicated tensors are grey. A partial sum has
    one sheet for each rank's summand, followed by the all-reduce that completes it. Tensors have
    one or two dims and are replicated, partial sums, or sharded over tp.
    """
    rows = []
    for line in [statements] if isinstance(statements, str) else statements:
        statement = Statement.parse(line)
        rows.append((statement, [_matrix(layout, held) for layout in statement.layouts]))
        _hold(line, statement, held)
    scale = LARGEST / max(length for _, row in rows for matrix in row for length in matrix.shape)
    items, told = [], []
    for statement, matrices in rows:
        items.append([])
        said = []
        for i, matrix in enumerate(matrices):
            inputs = len(statement.inputs)
            if i:
                items[-1].append(Item(sign="×" if i < inputs else "=" if i == inputs else ","))
            items[-1].append(_item(matrix, scale))
            said.append(_in_words(matrix))
            if matrix.layout.owed and (i >= inputs or not statement.outputs):
                whole = matrix._replace(layout=completed(matrix.layout))
                moves = collectives(matrix.layout, whole.layout)
                items[-1] += [Item(moves=moves), _item(whole, scale)]
                said[-1] += f": {' and '.join(map(str, moves))} completes it"
        told.append(f"{statement}: {'; '.join(said)}.")
    words = f"Matrices to scale, each block in the colour of its rank. {' '.join(told)}"
    return draw(size_of(items), words, lambda figure: paint_rows(in_inches(figure), items), title)


def _matrix(layout: Layout, held: Sequence[Mapping[str, Tensor]]) -> Matrix:
    tensors = [mine[layout.name] for mine in held if layout.name in mine]
    if len(tensors) != len(held):
        raise ValueError(f"{layout}: a rank has not passed its {layout.name}")
    if not 1 <= len(layout.dims) <= 2 or any(axis != "tp" for axis in layout.axes):
        raise ValueError(
            f"{layout} cannot be drawn: it must have one or two dims and be replicated, sharded "
            "over tp, or a partial sum over tp"
        )
    cut = next((i for i, dim in enumerate(layout.dims) if dim.axes), None)
    shape, pieces = list(tensors[0].shape), tuple(1 for _ in held)
    if cut is not None:
        pieces = tuple(tensor.shape[cut] for tensor in tensors)
        shape[cut] = sum(pieces)
    return Matrix(layout, tuple(shape), cut, pieces)


def _hold(line: str, statement: Statement, held: Sequence[Mapping[str, Tensor]]) -> None:
    """Raise an error if shapes or values contradict the statement."""
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
        check(line, axes={"tp": (rank, n)}, sizes=sizes, **parts)
    for layout in statement.layouts:
        if layout.cut_axes or n == 1:
            continue
        first, *others = (mine[layout.name].detach().cpu().double() for mine in held)
        alike = [torch.allclose(first, other, rtol=1e-5, atol=1e-8) for other in others]
        if layout.owed and any(alike):
            raise ValueError(
                f"{layout} is declared a partial sum, but two ranks hold the same values; was it "
                "already all-reduced?"
            )
        if not layout.owed and not all(alike):
            raise ValueError(
                f"{layout} is declared replicated, but the ranks hold different values"
            )


def _item(matrix: Matrix, scale: float) -> Item:
    board = sheets(matrix.layout, {"tp": len(matrix.pieces)})
    if matrix.cut is not None:
        last = matrix.cut == len(matrix.shape) - 1
        board = board._replace(**{"wides" if last else "highs": matrix.pieces})
    high, wide = (max(SMALLEST, length * scale) for length in (1, *matrix.shape)[-2:])
    how = "replicated" if matrix.cut is None else "sharded"
    how = "partial sum" if matrix.layout.owed else how
    return Item(board, (wide, high), [f"{matrix.size}, {how}"])


def _in_words(matrix: Matrix) -> str:
    name = f"{matrix.layout.name}, {matrix.size},"
    if matrix.layout.owed:
        return f"{name} is a partial sum on each rank"
    if matrix.cut is None:
        return f"{name} is replicated"
    what = "elements" if len(matrix.shape) == 1 else ("rows", "columns")[matrix.cut]
    shares = ", ".join(f"{piece} on rank {r}" for r, piece in enumerate(matrix.pieces))
    return f"{name} is sharded along its {what}: {shares}"
