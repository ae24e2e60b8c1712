"""Blocks by rank: a row for each rank, and a tile for each chunk in the colours of its sources.

The picture uses each rank's tensors before and after an operation to find the ranks whose values
are in each chunk. Lesson 01 draws collectives, and lesson 02 draws weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from course_classroom.figures.colours import Picture, draw, in_words, of_rank, rank_look
from course_classroom.figures.shapes import box, label, nothing_held, tiled

TILE = 0.5  # inches
Owners = tuple[int, ...]  # the ranks whose values are summed in one chunk; () for an absent chunk


def who_holds(
    panels: Mapping[str, Sequence[Sequence[Tensor | None]]],
    sources: Sequence[Sequence[Tensor]],
    *,
    title: str = "",
) -> Picture:
    """Draw each panel's chunks by rank: `panels[name][rank][chunk]`, None if absent.

    `sources[rank][chunk]` are the values that each rank started with. Each chunk is drawn as the
    sum of source chunks that it equals; if it equals no such sum, an error is raised.
    """
    held = {
        name: [
            [
                _owners(block, [s[c] for s in sources], f"{name}, rank {r}, chunk {c}")
                for c, block in enumerate(row)
            ]
            for r, row in enumerate(rows)
        ]
        for name, rows in panels.items()
    }
    unit = "element" if all(b.numel() == 1 for row in sources for b in row) else "chunk"
    words = {
        name: [f"rank {r} holds {', '.join(map(_chunk, row))}" for r, row in enumerate(rows)]
        for name, rows in held.items()
    }
    first = f"{unit.capitalize()} by {unit}, the ranks whose values it sums"
    n, chunks = len(sources), len(sources[0])
    # A tile is half an inch; a panel is wide enough for its name.
    panel = max(TILE * chunks, *(0.075 * len(name) for name in held)) + 0.3
    size, alt = (0.7 + panel * len(held), TILE * n + 1.05), in_words(first, words, between="; ")
    return draw(size, alt, lambda figure: _paint(figure, held, unit), title)


def _owners(block: Tensor | None, candidates: list[Tensor], place: str) -> Owners:
    """Return the ranks whose values sum to a block, by trying all sums of the candidates."""
    if block is None or block.numel() == 0:
        return ()
    n = len(candidates)
    for subset in sorted(range(1, 2**n), key=lambda bits: bits.bit_count()):
        ranks = tuple(r for r in range(n) if subset >> r & 1)
        total = torch.stack([candidates[r] for r in ranks]).sum(0)
        if total.shape == block.shape and torch.allclose(block, total, rtol=1e-6, atol=1e-6):
            return ranks
    raise ValueError(f"{place}: the values are no sum of the ranks' own. Is the operation right?")


def _paint(figure, held: dict[str, list[list[Owners]]], unit: str) -> None:
    axes = figure.subplots(1, len(held), squeeze=False)[0]
    for axis, (name, rows) in zip(axes, held.items(), strict=True):
        for r, row in enumerate(rows):
            for c, owners in enumerate(row):
                tile(axis, c, r, owners)
        names = [f"rank {r}" if axis is axes[0] else "" for r in range(len(rows))]
        tiled(axis, len(rows[0]), len(rows), range(len(rows[0])), names)
        axis.set(title=name, xlabel=unit)


def tile(axis, column: int, row: int, owners: Owners, *, hatched: bool = True) -> None:
    """Draw one chunk: a stripe with the rank's number for each rank whose values are in it."""
    left, top = column + 0.05, row + 0.05
    if not owners:
        nothing_held(axis, left, top, 0.9, 0.9)
    for i, owner in enumerate(owners):
        stripe = 0.9 / len(owners)
        look = rank_look(owner) if hatched else {"facecolor": of_rank(owner), "linewidth": 0.0}
        box(axis, left + i * stripe, top, stripe, 0.9, **look)
        look = {"fontsize": 8 if len(owners) < 4 else 6, "fontweight": "bold"}
        label(axis, left + (i + 0.5) * stripe, row + 0.5, str(owner), on=of_rank(owner), **look)


def _chunk(owners: Owners) -> str:
    return "+".join(map(str, owners)) if owners else "nothing"
