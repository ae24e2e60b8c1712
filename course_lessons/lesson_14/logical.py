"""A logical tensor as a grid of elements, coloured by the rank whose box contains an element.

Several panels show the same tensor in several layouts. Lesson 14 draws the shards that four ranks
wrote and three ranks read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_classroom.figures.colours import CARD, QUIET, Picture, draw, in_words, rank_look
from course_classroom.figures.shapes import box, label, legend, tiled
from course_lib.layout import Box

CELL, PANEL = 0.34, 0.45  # inches: an element, the space next to a panel
Held = Sequence[Sequence[Box]]  # the boxes of each rank


def logical(shape: tuple[int, int], panels: Mapping[str, Held], *, title: str = "") -> Picture:
    """Draw `panels[name][rank]`, a rank's boxes of a tensor of this shape; elements are numbered in
    the order of a row-major file. An element outside all boxes is white."""
    owners = {name: owner_of_each(shape, held) for name, held in panels.items()}
    rows, columns = shape
    wide = len(panels) * (columns * CELL + PANEL)
    size = (wide, rows * CELL + 0.95)
    parts = {name: _parts(owner, panels[name]) for name, owner in owners.items()}
    alt = in_words(f"A logical tensor of shape {shape}, element by element", parts)
    return draw(size, alt, lambda figure: _paint(figure, shape, owners, panels), title)


def owner_of_each(shape: tuple[int, int], held: Held) -> list[int | None]:
    """Return the rank of each element in row-major order; None if no box covers it."""
    rows, columns = shape
    owner: list[int | None] = [None] * (rows * columns)
    for rank, boxes in enumerate(held):
        for piece in boxes:
            (top, left), (high, wide) = piece.offset, piece.size
            if top + high > rows or left + wide > columns:
                raise ValueError(f"rank {rank}: {piece} exceeds a tensor of shape {shape}")
            for row in range(top, top + high):
                for column in range(left, left + wide):
                    place = row * columns + column
                    if owner[place] is not None:
                        raise ValueError(
                            f"element {place} is in boxes of rank {owner[place]} and rank {rank}"
                        )
                    owner[place] = rank
    return owner


def _paint(figure, shape: tuple[int, int], owners, panels: Mapping[str, Held]) -> None:
    rows, columns = shape
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (name, owner) in zip(axes, owners.items(), strict=True):
        for place, rank in enumerate(owner):
            row, column = divmod(place, columns)
            look = {"facecolor": CARD, "edgecolor": CARD} if rank is None else rank_look(rank)
            box(axis, column, row, 1, 1, **{**look, "linewidth": 0.8})
            label(axis, column + 0.5, row + 0.5, str(place), on=look["facecolor"], fontsize=7)
        tiled(axis, columns, rows)
        axis.set_title(name)
        axis.spines[:].set(color=QUIET, visible=True)
    ranks = range(max(len(held) for held in panels.values()))
    legend(figure, {f"rank {rank}": rank_look(rank) for rank in ranks})


def _parts(owner: Sequence[int | None], held: Held) -> list[str]:
    parts = [
        f"rank {rank} has {owner.count(rank)} elements in {len(boxes)} "
        f"{'box' if len(boxes) == 1 else 'boxes'}"
        for rank, boxes in enumerate(held)
    ]
    left = owner.count(None)
    return parts + ([f"{left} are in no box"] if left else [])
