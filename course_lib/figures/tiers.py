"""Tiers of memory as boxes in a row, with what is kept in each and what is carried between them.

Lesson 12 draws device, host and disk of an offloaded step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from course_lib.figures.colours import INK, QUIET, Picture, draw

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
    if len(names) < 2:
        raise ValueError("there is nothing to carry with fewer than two tiers")
    arrows = [Carried(*one) for one in carried]
    for arrow in arrows:
        if not {arrow.source, arrow.target} <= set(names):
            raise ValueError(f"{arrow.source} → {arrow.target}: the tiers are {', '.join(names)}")
        if abs(names.index(arrow.source) - names.index(arrow.target)) != 1:
            raise ValueError(f"{arrow.source} → {arrow.target}: these two are no neighbours")
    lines = max(len(kept) for kept in keeps.values()) + 1
    most = max((len(_between(arrows, names, i)) for i in range(len(names) - 1)), default=0)
    high = max(lines * LINE + 0.3, 0.48 * most + 0.15)
    wide = BOX * len(names) + GAP * (len(names) - 1) + 0.1
    size = (max(wide, 0.085 * len(title) + 0.3), high + (0.4 if title else 0.1))
    alt = _in_words(keeps, arrows, title)
    return draw(size, alt, lambda figure: _paint(figure, keeps, arrows, high, wide, title))


def _between(arrows: Sequence[Carried], names: Sequence[str], i: int) -> list[Carried]:
    pair = {names[i], names[i + 1]}
    return [arrow for arrow in arrows if {arrow.source, arrow.target} == pair]


def _paint(figure, keeps, arrows, high: float, wide: float, title: str) -> None:
    from matplotlib.patches import Rectangle

    axis = figure.subplots()
    if title:
        figure.suptitle(title, fontsize=10, color=INK)
    names = list(keeps)
    for i, name in enumerate(names):
        left = i * (BOX + GAP)
        look = {"facecolor": FILL, "edgecolor": INK, "linewidth": 1.0}
        axis.add_patch(Rectangle((left, 0), BOX, high, **look))
        middle, top = left + BOX / 2, high - 0.1
        axis.text(middle, top, name, ha="center", va="top", fontweight="bold", color=INK)
        for k, line in enumerate(keeps[name], 1):
            axis.text(
                middle, top - k * LINE - 0.06, line, ha="center", va="top", fontsize=8, color=INK
            )
    for i in range(len(names) - 1):
        here = _between(arrows, names, i)
        left, right = i * (BOX + GAP) + BOX, (i + 1) * (BOX + GAP)
        for k, arrow in enumerate(here):
            y = high * (len(here) - k - 0.5) / len(here) - 0.06
            ends = [(left + 0.06, y), (right - 0.06, y)]
            if arrow.source != names[i]:
                ends.reverse()
            look = {"arrowstyle": "-|>", "color": QUIET, "linewidth": 1.4}
            axis.annotate("", xy=ends[1], xytext=ends[0], arrowprops=look)
            axis.text((left + right) / 2, y + 0.05, arrow.what, ha="center", va="bottom",
                      fontsize=8, color=INK)  # fmt: skip
    axis.set_xlim(-0.05, wide - 0.05)
    axis.set_ylim(-0.05, high + 0.05)
    axis.axis("off")


def _in_words(keeps, arrows: Sequence[Carried], title: str) -> str:
    told = [f"{name} keeps {', '.join(lines) or 'nothing'}." for name, lines in keeps.items()]
    told += [f"From {one.source} to {one.target}: {one.what}." for one in arrows]
    return f"{title + '. ' if title else ''}{' '.join(told)}"
