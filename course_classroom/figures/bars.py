"""Bar charts of bytes: every panel has the same ways, and each bar has its value next to it.

In `bars` each panel has its own scale from 0, so values that are too small to see are negligible.
`stacked_bars` has one scale for all bars and divides them into parts. Lesson 07 draws the bytes
that three ways to a loss send and hold, and lesson 12 the place of each setting's bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from course_classroom.figures.colours import CARD, INK, Picture, draw, in_words, method
from course_classroom.figures.shapes import stacked

HIGH, PANEL, WIDEST = 0.34, 3.2, 9.0  # inches: a bar with its space, a panel, the picture
PARTS = (0, 3, 1, 2, 4)  # indices of the methods' colours: neighbours differ clearly in lightness
_UNITS = (("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


def bars(panels: Mapping[str, Mapping[str, float]], *, title: str = "") -> Picture:
    """Draw `panels[panel][way]` in bytes; every panel has the same ways in the same order."""
    ways = list(next(iter(panels.values())))
    panels = {name: {way: panel[way] for way in ways} for name, panel in panels.items()}
    names = 0.075 * max(map(len, ways)) + 0.2
    wide = names + min(PANEL * len(panels), WIDEST - names)
    size = (wide, HIGH * len(ways) + 0.55)
    return draw(size, in_words("", _numbers(panels)), lambda figure: _paint(figure, panels), title)


def shown(nbytes: float) -> str:
    """Format a number of bytes with a unit, to three significant digits in kB and MB."""
    unit, size = next((u for u in _UNITS if nbytes >= u[1]), _UNITS[-1])
    return f"{nbytes / size:,.3g} {unit}" if size > 1 else f"{nbytes:,.0f} {unit}"


def _paint(figure, panels: Mapping[str, Mapping[str, float]]) -> None:
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        most = max(panel.values()) or 1.0
        for row, nbytes in enumerate(panel.values()):
            axis.barh(row, nbytes, height=0.66, color=method(row), edgecolor=INK, linewidth=0.6)
            axis.text(nbytes + 0.02 * most, row, shown(nbytes), va="center", color=INK, fontsize=8)
        axis.set(
            xlim=(0, (1.32 if len(panels) < 3 else 1.45) * most),
            ylim=(len(panel) - 0.45, -0.55),
            title=name,
        )
        axis.set_yticks(range(len(panel)), list(panel) if axis is axes[0] else [""] * len(panel))
        axis.set_xticks([])
        axis.tick_params(length=0, labelcolor=INK)
        axis.spines["bottom"].set_visible(False)


def stacked_bars(ways: Mapping[str, Mapping[str, float]], *, title: str = "") -> Picture:
    """Draw `ways[way][part]` in bytes: one stacked bar of parts for each way, on one scale."""
    parts = list(next(iter(ways.values())))
    most = max(sum(row.values()) for row in ways.values())
    unit, size = next(u for u in _UNITS if most >= u[1] or u[1] == 1.0)
    lengths = {way: [row[part] / size for part in parts] for way, row in ways.items()}
    shades = dict(zip(parts, map(method, PARTS), strict=False))
    looks = {part: {"facecolor": shades[part], "edgecolor": CARD} for part in parts}

    def paint(figure) -> None:
        axis = figure.subplots()
        stacked(axis, lengths, looks, lambda length: shown(length * size))
        axis.set_xlabel(unit)

    return draw((7.6, HIGH * len(ways) + 1.0), in_words("", _numbers(ways)), paint, title)


def _numbers(panels: Mapping[str, Mapping[str, float]]) -> dict[str, list[str]]:
    """Describe the bars in each panel in words: each way with its bytes."""
    return {
        name: [f"{way} {shown(nbytes)}" for way, nbytes in panel.items()]
        for name, panel in panels.items()
    }
