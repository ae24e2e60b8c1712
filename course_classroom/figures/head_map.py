"""Heads by rank: query heads in a row, and below each the key/value head that it reads.

The picture uses the weights and identifies a rank's heads by their values. Lesson 05 draws uneven
shards, and key/value heads that several ranks hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from course_classroom.figures.colours import INK, Picture, draw, in_words
from course_classroom.figures.shapes import rank_box, tiled

TILE = 0.56  # inches
KINDS = {"q": "query heads", "k": "key/value heads", "v": "key/value heads"}
Holders = dict[str, list[tuple[int, ...]]]  # part → for each head, the ranks that hold it


def head_map(
    whole: Mapping[str, Tensor], held: Sequence[Mapping[str, Tensor]], *, title: str = ""
) -> Picture:
    """Draw the ranks that hold each head: `whole[part]` is (heads, …), `held[rank][part]` a shard.

    The parts are q, k and v. A key/value head is below the query heads that read it. A head that is
    not in the model, or that no rank holds, is refused.
    """
    most = max(len(tensor) for tensor in whole.values())
    owners = {part: _owners(part, whole[part], [own[part] for own in held]) for part in whole}
    lines = axis_label(owners, most).count("\n")
    size = (TILE * most + 2.1, TILE * len(whole) + 0.95 + 0.18 * lines)
    words = {
        part: [
            f"head {head} on {' and '.join(f'rank {r}' for r in ranks)}"
            for head, ranks in enumerate(ranks_of)
        ]
        for part, ranks_of in owners.items()
    }
    alt = in_words("Heads and the ranks that hold them", words, between="; ")
    return draw(size, alt, lambda figure: _paint(figure, owners, most), title)


def _owners(part: str, whole: Tensor, held: Sequence[Tensor]) -> list[tuple[int, ...]]:
    found: list[list[int]] = [[] for _ in whole]
    for rank, own in enumerate(held):
        for number, head in enumerate(own):
            here = [i for i, one in enumerate(whole) if torch.equal(one, head)]
            if not here:
                raise ValueError(
                    f"rank {rank}: its head {number} of {part} is not a head of the full model"
                )
            found[here[0]].append(rank)
    missing = [i for i, ranks in enumerate(found) if not ranks]
    if missing:
        raise ValueError(f"no rank holds head {missing[0]} of {part}")
    return [tuple(ranks) for ranks in found]


def _paint(figure, owners: Holders, most: int) -> None:
    axis = figure.subplots()
    for row, ranks_of in enumerate(owners.values()):
        wide = most // len(ranks_of)
        for head, ranks in enumerate(ranks_of):
            _tile(axis, head * wide, row, wide, ranks, f"head {head}: " if wide > 1 else "")
    names = [f"{part}: {KINDS[part]}" for part in owners]
    tiled(axis, most, len(owners), range(most), names)
    axis.set(anchor="N", xlabel=axis_label(owners, most))
    axis.tick_params(labelcolor=INK)


def axis_label(owners: Holders, most: int) -> str:
    """Return the label of the numbers below the picture, with a note on wider tiles."""
    spans = any(len(ranks_of) < most for ranks_of in owners.values())
    return "query head" + "\n(a key/value head spans\nthose that read it)" * spans


def _tile(axis, left: float, row: int, wide: int, ranks: tuple[int, ...], head: str) -> None:
    """Draw one head: a bar for each rank that holds it, with the rank's name."""
    width, bar = wide - 0.1, 0.9 / len(ranks)
    for i, rank in enumerate(ranks):
        x, y = left + 0.05, row + 0.05 + i * bar
        gap = 0.04 if i + 1 < len(ranks) else 0.0  # between two bars
        look = {"fontsize": 7 if len(ranks) < 4 else 5.5, "fontweight": "bold"}
        rank_box(axis, (x, y, width, bar - gap), rank, f"{head}rank {rank}", **look)
