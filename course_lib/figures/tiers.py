"""Tiers of memory as boxes in a row, with what is kept in each and what is carried between them.

Lesson 12 draws device, host and disk of an offloaded step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from course_lib.figures.colours import INK, QUIET, Picture, draw
from course_lib.figures.shapes import arrow, box

BOX, GAP, LINE = 1.9, 2.15, 0.19  # inches: a box, the space between two, a line of text
FILL = "#ececec"  # no rank's colour


class Carried(NamedTuple):
    """What goes from one tier to a neighbouring one, in words."""

    source: str
    target: str
    what: str


def tiers(
    keeps: Mapping[str, Sequence[str]], carried: Sequence[Carried], *, title: str = ""
) -> Picture:
    """Draw `keeps[tier]`, lines of text, and an arrow for each of `carried`."""
    names = list(keeps)
    arrows = [Carried(*one) for one in carried]
    for one in arrows:
        if abs(names.index(one.source) - names.index(one.target)) != 1:
            raise ValueError(f"{one.source} → {one.target}: these two are no neighbours")
    lines = max(len(kept) for kept in keeps.values()) + 1
    most = max((len(_between(arrows, names, i)) for i in range(len(names) - 1)), default=0)
    high = max(lines * LINE + 0.3, 0.48 * most + 0.15)
    wide = BOX * len(names) + GAP * (len(names) - 1) + 0.1
    size = (wide, high + 0.1)
    alt = _in_words(keeps, arrows)
    return draw(size, alt, lambda figure: _paint(figure, keeps, arrows, high, wide), title)


def _between(arrows: Sequence[Carried], names: Sequence[str], i: int) -> list[Carried]:
    pair = {names[i], names[i + 1]}
    return [one for one in arrows if {one.source, one.target} == pair]


def _paint(figure, keeps, arrows, high: float, wide: float) -> None:
    axis = figure.subplots()
    names = list(keeps)
    for i, name in enumerate(names):
        left = i * (BOX + GAP)
        box(axis, left, 0, BOX, high, facecolor=FILL, edgecolor=INK)
        middle, top = left + BOX / 2, high - 0.1
        axis.text(middle, top, name, ha="center", va="top", fontweight="bold")
        for k, line in enumerate(keeps[name], 1):
            axis.text(
                middle, top - k * LINE - 0.06, line, ha="center", va="top", fontsize=8, color=INK
            )
    for i in range(len(names) - 1):
        here = _between(arrows, names, i)
        left, right = i * (BOX + GAP) + BOX, (i + 1) * (BOX + GAP)
        for k, one in enumerate(here):
            y = high * (len(here) - k - 0.5) / len(here) - 0.06
            ends = [(left + 0.06, y), (right - 0.06, y)]
            if one.source != names[i]:
                ends.reverse()
            arrow(axis, *ends, color=QUIET)
            axis.text((left + right) / 2, y + 0.05, one.what, ha="center", va="bottom", fontsize=8)
    axis.set_xlim(-0.05, wide - 0.05)
    axis.set_ylim(-0.05, high + 0.05)
    axis.axis("off")


def _in_words(keeps, arrows: Sequence[Carried]) -> str:
    told = [f"{name} keeps {', '.join(lines) or 'nothing'}." for name, lines in keeps.items()]
    told += [f"From {one.source} to {one.target}: {one.what}." for one in arrows]
    return f"{' '.join(told)}"
