"""Tiers of memory as boxes in a row, with the data kept in each and moved between them.

Lesson 12 draws device, host and disk of an offloaded step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_classroom.figures.colours import INK, QUIET, Picture, draw
from course_classroom.figures.shapes import arrow, box, in_inches

BOX, GAP, LINE = 1.9, 2.15, 0.19  # inches: a box, the space between two, a line of text
FILL = "#ececec"  # not a rank's colour


def tiers(
    keeps: Mapping[str, Sequence[str]], carried: Sequence[tuple[str, str, str]], *, title: str = ""
) -> Picture:
    """Draw a box with the lines of `keeps[tier]` for each tier, and an arrow for each (source tier,
    adjacent target tier, data) of `carried`."""
    names = list(keeps)
    gaps: list[list[tuple[bool, str]]] = [[] for _ in names[1:]]  # to the right, and the data
    for source, target, what in carried:
        start, stop = names.index(source), names.index(target)
        if abs(start - stop) != 1:
            raise ValueError(f"{source} → {target}: these two are not neighbours")
        gaps[min(start, stop)].append((start < stop, what))
    lines = max(map(len, keeps.values())) + 1
    high = max(lines * LINE + 0.3, 0.48 * max(map(len, gaps), default=0) + 0.15)
    size = (BOX * len(names) + GAP * len(gaps) + 0.1, high + 0.1)
    told = [f"{name} keeps {', '.join(kept) or 'nothing'}." for name, kept in keeps.items()]
    told += [f"From {source} to {target}: {what}." for source, target, what in carried]
    return draw(size, " ".join(told), lambda figure: _paint(figure, keeps, gaps, high), title)


def _paint(figure, keeps, gaps, high: float) -> None:
    axis = in_inches(figure)
    lefts = [0.05 + i * (BOX + GAP) for i in range(len(keeps))]
    for left, (name, lines) in zip(lefts, keeps.items(), strict=True):
        box(axis, left, 0.05, BOX, high, facecolor=FILL, edgecolor=INK)
        look = {"ha": "center", "va": "top"}
        axis.text(left + BOX / 2, 0.15, name, fontweight="bold", **look)
        for k, line in enumerate(lines, 1):
            axis.text(left + BOX / 2, 0.21 + k * LINE, line, fontsize=8, color=INK, **look)
    for left, arrows in zip(lefts, gaps, strict=False):
        start, stop = left + BOX + 0.06, left + BOX + GAP - 0.06
        for k, (to_the_right, what) in enumerate(arrows):
            y = 0.11 + high * (k + 0.5) / len(arrows)
            ends = [(start, y), (stop, y)]
            arrow(axis, *(ends if to_the_right else ends[::-1]), color=QUIET)
            middle = (start + stop) / 2
            axis.text(middle, y - 0.05, what, ha="center", va="bottom", fontsize=8)
