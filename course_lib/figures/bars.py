"""Bytes as bars: the same ways in every panel, each bar with its number beside it.

A panel has a scale of its own that begins at 0, so that what is too small to see is too small.
Lesson 07 draws what three ways to a loss send, and what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.figures.colours import INK, QUIET, Picture, draw, method

HIGH, PANEL = 0.34, 3.2  # inches: of a bar with its space, of a panel
_UNITS = (("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


def bars(panels: Mapping[str, Mapping[str, float]], *, title: str = "") -> Picture:
    """Draw `panels[panel][way]` in bytes; every panel has the same ways in the same order."""
    if not panels or not all(panels.values()):
        raise ValueError("bars need a panel or more with a way or more: {panel: {way: bytes}}")
    ways = list(next(iter(panels.values())))
    for name, panel in panels.items():
        if list(panel) != ways:
            raise ValueError(f"panel {name!r} has the ways {list(panel)}, the first one {ways}")
        if min(panel.values()) < 0:
            raise ValueError(f"panel {name!r} has fewer than 0 bytes: {min(panel.values())}")
    names = 0.075 * max(map(len, ways)) + 0.2
    wide = max(names + PANEL * len(panels), 0.085 * len(title) + 0.3)
    size = (wide, HIGH * len(ways) + (0.85 if title else 0.55))
    return draw(size, _in_words(panels, title), lambda figure: _paint(figure, panels, title))


def shown(nbytes: float) -> str:
    """With its unit, to three digits where there are more than bytes."""
    unit, size = next((u for u in _UNITS if nbytes >= u[1]), _UNITS[-1])
    return f"{nbytes / size:,.3g} {unit}" if size > 1 else f"{nbytes:,.0f} {unit}"


def _paint(figure, panels: Mapping[str, Mapping[str, float]], title: str) -> None:
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    if title:
        figure.suptitle(title, fontsize=10, color=INK)
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        most = max(panel.values()) or 1.0
        for row, nbytes in enumerate(panel.values()):
            axis.barh(row, nbytes, height=0.66, color=method(row), edgecolor=INK,
                      linewidth=0.6)  # fmt: skip
            axis.text(nbytes + 0.02 * most, row, shown(nbytes), va="center", color=INK, fontsize=8)
        axis.set_xlim(0, 1.32 * most)
        axis.set_ylim(len(panel) - 0.45, -0.55)
        axis.set_title(name, fontsize=9, color=INK)
        axis.set_yticks(range(len(panel)), list(panel) if axis is axes[0] else [""] * len(panel))
        axis.set_xticks([])
        axis.tick_params(length=0, labelcolor=INK)
        for side in ("top", "right", "bottom"):
            axis.spines[side].set_visible(False)
        axis.spines["left"].set_color(QUIET)


def _in_words(panels: Mapping[str, Mapping[str, float]], title: str) -> str:
    told = [
        f"{name}: {', '.join(f'{way} {shown(nbytes)}' for way, nbytes in panel.items())}."
        for name, panel in panels.items()
    ]
    return f"{title + '. ' if title else ''}{' '.join(told)}"
