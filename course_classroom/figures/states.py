"""Training memory of a rank, in bytes per parameter: a bar for each rank of each stage.

Replicated parts are grey and sharded parts have the rank's colour; a band along the bar's upper
edge shows the kind. Lesson 09 draws stages 0 and 1, lessons 10 and 11 the later stages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from course_classroom.figures.colours import (
    CARD,
    INK,
    QUIET,
    Picture,
    draw,
    in_words,
    method,
    of_rank,
)
from course_classroom.figures.shapes import label, legend

WIDE, ROW, GAP = 7.2, 0.34, 0.45  # inches: the picture, a bar with its space, above a stage
COPY = "#ebebeb"
HEIGHT = 0.78  # of a row
BAND = 0.2  # of a bar's height


def states(
    stages: Mapping[str, Sequence[Mapping[str, float]]],
    *,
    cut: Mapping[str, Collection[str]],
    title: str = "",
    own: str = "its own shard",
) -> Picture:
    """Draw `stages[stage][rank][kind]`, in bytes per parameter, with the kinds side by side.

    `cut[stage]` lists the sharded kinds. Every rank of every stage has the same kinds, in one
    order. `own` describes a shard in words.
    """
    words = {}
    for stage, ranks in stages.items():
        words[stage] = []
        for rank, row in enumerate(ranks):
            parts = [
                f"{kind} {shown(wide)}{f', {own}' if kind in cut.get(stage, ()) else ''}"
                for kind, wide in row.items()
                if wide
            ]
            words[stage].append(f"rank {rank} {shown(sum(row.values()))}: {'; '.join(parts)}")
    alt = in_words("Bytes per parameter by rank", words, between=". ")
    rows = sum(len(ranks) for ranks in stages.values())
    size = (WIDE, ROW * rows + GAP * len(stages) + 0.95)
    return draw(size, alt, lambda figure: _paint(figure, stages, cut), title)


def _paint(figure, stages, cut) -> None:
    axis = figure.subplots()
    kinds = next(iter(stages.values()))[0]
    most = max(sum(row.values()) for ranks in stages.values() for row in ranks)
    y, ticks, names = 0.0, [], []
    for stage, ranks in stages.items():
        axis.text(0, y, stage, fontsize=9, fontweight="bold", color=INK, va="center")
        y += GAP / ROW * 0.62
        for rank, row in enumerate(ranks):
            _bar(axis, y, rank, row, cut.get(stage, ()), most)
            ticks.append(y)
            names.append(f"rank {rank}")
            y += 1
        y += GAP / ROW * 0.38
    axis.set(xlim=(0, 1.12 * most), ylim=(y - 0.5, -0.6))
    axis.set_yticks(ticks, names)
    axis.set_xlabel("bytes per parameter")
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    looks = {kind: {"facecolor": method(i), "edgecolor": CARD} for i, kind in enumerate(kinds)}
    looks["grey: a copy on every rank"] = {"facecolor": COPY, "edgecolor": QUIET}
    legend(figure, looks, ncols=3)


def _bar(axis, y: float, rank: int, row, cut: Collection[str], most: float) -> None:
    left = 0.0
    for i, (kind, wide) in enumerate(row.items()):
        shade = of_rank(rank) if kind in cut else COPY
        axis.barh(y, wide, left=left, height=HEIGHT, color=shade, edgecolor=CARD, linewidth=1.0)
        top = y - HEIGHT / 2 + BAND * HEIGHT / 2  # the axis runs downwards
        band = {"height": BAND * HEIGHT, "color": method(i), "edgecolor": CARD, "linewidth": 0.6}
        axis.barh(top, wide, left=left, **band)
        if wide > 0.05 * most:  # otherwise there is no room for a number
            label(axis, left + wide / 2, y + 0.09, shown(wide), on=shade, fontweight="bold")
        left += wide
    axis.text(left + 0.012 * most, y, shown(left), va="center", fontsize=9)


def shown(value: float) -> str:
    """Format a number with at most two decimals, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
