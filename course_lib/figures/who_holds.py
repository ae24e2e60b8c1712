"""Which rank holds which block: a row a rank, a tile a chunk, coloured by whose values are in it.

Drawn from the tensors themselves: give it what each rank holds before and after a verb, and it
finds out which ranks' values are in each chunk. Lesson 01 draws the verbs, lesson 02 weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from course_lib.figures.colours import INK, QUIET, Picture, draw, hatch_of_rank, ink_on, of_rank

TILE = 0.5  # inches
Owners = tuple[int, ...]  # the ranks whose values are summed in one chunk; () where none is held


def who_holds(
    panels: Mapping[str, Sequence[Sequence[Tensor | None]]],
    sources: Sequence[Sequence[Tensor]],
    *,
    title: str = "",
) -> Picture:
    """Draw for each panel what every rank holds: `panels[name][rank][chunk]`, None for nothing.

    `sources[rank][chunk]` are the values that each rank started with. A chunk is drawn as the sum
    of those ranks' chunks that it is equal to; one that is no such sum is refused.
    """
    held = {
        name: [
            [_owners(block, [s[c] for s in sources], f"{name}, rank {r}, chunk {c}")
             for c, block in enumerate(row)]
            for r, row in enumerate(rows)
        ]
        for name, rows in panels.items()
    }  # fmt: skip
    unit = "element" if all(b.numel() == 1 for row in sources for b in row) else "chunk"
    alt = _in_words(held, title, unit)
    n, chunks = len(sources), len(sources[0])
    # A tile is half an inch; a panel is wide enough for its name.
    panel = max(TILE * chunks, *(0.075 * len(name) for name in held)) + 0.3
    wide = max(0.7 + panel * len(held), 0.075 * len(title) + 0.2)
    size = (wide, TILE * n + (1.35 if title else 1.05))
    return draw(size, alt, lambda figure: _paint(figure, held, title, unit))


def _owners(block: Tensor | None, candidates: list[Tensor], place: str) -> Owners:
    """The ranks whose values sum to a block: the candidates are few, so all sums are tried."""
    if block is None or block.numel() == 0:
        return ()
    n = len(candidates)
    for subset in sorted(range(1, 2**n), key=lambda bits: bits.bit_count()):
        ranks = tuple(r for r in range(n) if subset >> r & 1)
        total = torch.stack([candidates[r] for r in ranks]).sum(0)
        if total.shape == block.shape and torch.allclose(block, total, rtol=1e-6, atol=1e-6):
            return ranks
    raise ValueError(f"{place}: these values are no sum of the ranks' own; is the verb right?")


def _paint(figure, held: dict[str, list[list[Owners]]], title: str, unit: str) -> None:
    from matplotlib.patches import Rectangle

    axes = figure.subplots(1, len(held), squeeze=False)[0]
    if title:
        figure.suptitle(title, fontsize=10, color=INK)
    for axis, (name, rows) in zip(axes, held.items(), strict=True):
        for r, row in enumerate(rows):
            for c, owners in enumerate(row):
                tile(axis, Rectangle, c, r, owners)
        axis.set_xlim(-0.05, len(rows[0]) + 0.05)
        axis.set_ylim(len(rows) + 0.05, -0.05)
        axis.set_aspect("equal")
        axis.set_title(name, fontsize=9, color=INK)
        axis.set_xticks([c + 0.5 for c in range(len(rows[0]))], range(len(rows[0])))
        axis.set_yticks(
            [r + 0.5 for r in range(len(rows))], [f"rank {r}" for r in range(len(rows))]
        )
        axis.tick_params(length=0)
        axis.set_xlabel(unit)
        if axis is not axes[0]:
            axis.set_yticklabels([])
        for side in axis.spines.values():
            side.set_visible(False)


def tile(axis, rectangle, column: int, row: int, owners: Owners, *, hatched: bool = True) -> None:
    """One chunk: a stripe for each rank whose values are in it, and their names."""
    if not owners:
        edge = {"facecolor": "none", "edgecolor": QUIET, "linestyle": ":", "linewidth": 0.8}
        axis.add_patch(rectangle((column + 0.05, row + 0.05), 0.9, 0.9, **edge))
        return
    stripe = 0.9 / len(owners)
    for i, owner in enumerate(owners):
        colour = of_rank(owner)
        corner = (column + 0.05 + i * stripe, row + 0.05)
        axis.add_patch(
            rectangle(
                corner, stripe, 0.9, facecolor=colour, edgecolor="#ffffff",
                hatch=hatch_of_rank(owner) if hatched else "", linewidth=0.0,
            )
        )  # fmt: skip
        axis.text(
            corner[0] + stripe / 2, row + 0.5, str(owner), ha="center", va="center",
            fontsize=8 if len(owners) < 4 else 6, color=ink_on(colour), fontweight="bold",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip


def _in_words(held: dict[str, list[list[Owners]]], title: str, unit: str) -> str:
    told = []
    for name, rows in held.items():
        lines = (f"rank {r} holds {', '.join(map(_chunk, row))}" for r, row in enumerate(rows))
        told.append(f"{name}: {'; '.join(lines)}.")
    head = f"{title}. " if title else ""
    by_unit = f"{unit.capitalize()} by {unit}"
    return f"{head}{by_unit}, the ranks whose values are summed in it. {' '.join(told)}"


def _chunk(owners: Owners) -> str:
    return "+".join(map(str, owners)) if owners else "nothing"
