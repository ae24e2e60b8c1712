"""One logical tensor as a grid of elements, coloured by the rank whose box an element is in.

Several panels show the same tensor under several layouts. Lesson 14 draws what four ranks wrote
and what three read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.figures.colours import INK, QUIET, Picture, draw, hatch_of_rank, ink_on, of_rank
from course_lib.layout import Box

CELL, PANEL = 0.34, 0.45  # inches: an element, the space beside a panel
Held = Sequence[Sequence[Box]]  # the boxes of each rank


def logical(shape: tuple[int, int], panels: Mapping[str, Held], *, title: str = "") -> Picture:
    """Draw `panels[name][rank]`, a rank's boxes of a tensor of this shape; elements are numbered
    as they follow each other in a row-major file. An element in no box stays white."""
    if len(shape) != 2 or not panels:
        raise ValueError("a logical tensor is drawn with two dims, in one panel or more")
    owners = {name: owner_of_each(shape, held) for name, held in panels.items()}
    rows, columns = shape
    wide = len(panels) * (columns * CELL + PANEL)
    size = (max(wide, 0.085 * len(title) + 0.3), rows * CELL + 0.95 + (0.3 if title else 0.0))
    alt = _in_words(shape, owners, panels, title)
    return draw(size, alt, lambda figure: _paint(figure, shape, owners, panels, title))


def owner_of_each(shape: tuple[int, int], held: Held) -> list[int | None]:
    """The rank of each element in row-major order; None where no box covers it."""
    rows, columns = shape
    owner: list[int | None] = [None] * (rows * columns)
    for rank, boxes in enumerate(held):
        for box in boxes:
            (top, left), (high, wide) = box.offset, box.size
            if top + high > rows or left + wide > columns:
                raise ValueError(f"rank {rank}: {box} reaches beyond a tensor of shape {shape}")
            for row in range(top, top + high):
                for column in range(left, left + wide):
                    place = row * columns + column
                    if owner[place] is not None:
                        raise ValueError(
                            f"element {place} is in a box of rank {owner[place]} and of rank {rank}"
                        )
                    owner[place] = rank
    return owner


def _paint(figure, shape: tuple[int, int], owners, panels: Mapping[str, Held], title: str) -> None:
    from matplotlib.patches import Patch, Rectangle

    if title:
        figure.suptitle(title, fontsize=10, color=INK)
    rows, columns = shape
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (name, owner) in zip(axes, owners.items(), strict=True):
        for place, rank in enumerate(owner):
            row, column = divmod(place, columns)
            colour = "#ffffff" if rank is None else of_rank(rank)
            hatch = "" if rank is None else hatch_of_rank(rank)
            axis.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, edgecolor="#ffffff",
                                     hatch=hatch, linewidth=0.8))  # fmt: skip
            axis.text(
                column + 0.5, row + 0.5, str(place), ha="center", va="center", fontsize=7,
                color=ink_on(colour),
                bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.6},
            )  # fmt: skip
        axis.set_xlim(-0.05, columns + 0.05)
        axis.set_ylim(rows + 0.05, -0.05)
        axis.set_aspect("equal")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_title(name, fontsize=9, color=INK)
        for side in axis.spines.values():
            side.set_color(QUIET)
    ranks = range(max(len(held) for held in panels.values()))
    handles = [
        Patch(facecolor=of_rank(r), hatch=hatch_of_rank(r), edgecolor="#ffffff", label=f"rank {r}")
        for r in ranks
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(ranks), frameon=False,
                  fontsize=8)  # fmt: skip


def _in_words(shape: tuple[int, int], owners, panels: Mapping[str, Held], title: str) -> str:
    told = []
    for name, owner in owners.items():
        parts = [
            f"rank {rank} has {owner.count(rank)} elements in {len(boxes)} "
            f"box{'es'[: 2 * (len(boxes) != 1)]}"
            for rank, boxes in enumerate(panels[name])
        ]
        left = owner.count(None)
        parts += [f"{left} are in no box"] if left else []
        told.append(f"{name}: {', '.join(parts)}.")
    head = f"{title}. " if title else ""
    return f"{head}A logical tensor of shape {shape}, element by element. {' '.join(told)}"
