"""A lookup in a vocabulary-sharded embedding: a row for each rank, a tile for each token.

The picture uses the ranks' partial sums. A tile has the colour of the rank that holds the entry, or
is marked as zeros; the all-reduced sum is below. Lesson 07 draws four ids on two ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from course_classroom.figures.colours import INK, QUIET, Picture, draw
from course_classroom.figures.shapes import label, nothing_held, rank_box, tiled

TILE, LABEL = 0.55, 1.75  # inches


def word_rows(
    ids: Tensor,
    parts: Sequence[Tensor],
    whole: Tensor,
    spans: Sequence[tuple[int, int]],
    *,
    title: str = "",
) -> Picture:
    """Draw the rank that found each of `ids` (t,); `parts[rank]` and `whole` have shape (t, h).

    `spans[rank]` is the rank's range of entries, (first, last + 1). Parts that do not add up to
    `whole`, or an id that no rank or two ranks found, are refused.
    """
    if not torch.allclose(torch.stack(list(parts)).sum(0), whole):
        raise ValueError(
            "the ranks' parts do not add up to the lookup without ranks: is it the same lookup?"
        )
    words, finders = ids.tolist(), []
    for place, word in enumerate(words):
        found = [rank for rank, part in enumerate(parts) if bool(part[place].any())]
        if len(found) != 1:
            who = f"ranks {', '.join(map(str, found))}" if found else "no rank"
            raise ValueError(f"id {word} of token {place} was found by {who}, not by exactly one")
        finders.append(found[0])
    told = []
    for rank, (start, stop) in enumerate(spans):
        found = [str(word) for word, finder in zip(words, finders, strict=True) if finder == rank]
        what = f"finds {', '.join(found)} and has zeros for the rest" if found else "has only zeros"
        told.append(f"rank {rank} holds entries {start} to {stop - 1}, {what}")
    alt = f"The ids looked up are {', '.join(map(str, words))}: {'; '.join(told)}."
    size = (LABEL + TILE * len(words) + 0.3, TILE * (len(parts) + 1) + 0.9)
    return draw(size, alt, lambda figure: _paint(figure, words, finders, spans), title)


def _paint(figure, words, finders, spans) -> None:
    axis = figure.subplots()
    n = len(spans)
    for column, finder in enumerate(finders):
        for rank in range(n):
            _tile(axis, column, rank, finder if finder == rank else None)
        _tile(axis, column, n + 0.15, finder)
    axis.plot([0, len(words)], [n + 0.075] * 2, color=QUIET, linewidth=0.8)
    held = [f"rank {rank}: entries {a} to {z - 1}" for rank, (a, z) in enumerate(spans)]
    tiled(axis, len(words), n, words)
    axis.set(ylim=(n + 1.2, -0.05), anchor="W")
    axis.set_yticks([*(rank + 0.5 for rank in range(n)), n + 0.65], [*held, "their sum"])
    axis.set_xlabel("id looked up")
    axis.tick_params(labelcolor=INK)


def _tile(axis, left: float, top: float, rank: int | None) -> None:
    """Draw a row of the table in its rank's colour, or a row of zeros."""
    at = (left + 0.05, top + 0.05, 0.9, 0.9)
    if rank is None:
        nothing_held(axis, *at)
        label(axis, left + 0.5, top + 0.5, "zeros", color=QUIET)
    else:
        rank_box(axis, at, rank, str(rank), fontweight="bold")
