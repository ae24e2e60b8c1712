"""Bytes as bars: the same ways in every panel, each bar with its number beside it.

In `bars` a panel has a scale of its own that begins at 0, so that what is too small to see is too
small; `stacked_bars` has one scale for all, and parts. Lesson 07 draws what three ways to a loss
send, and what they hold; lesson 12 where the bytes of each setting are.
"""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.figures.colours import INK, QUIET, Picture, draw, ink_on, method

HIGH, PANEL, WIDEST = 0.34, 3.2, 9.0  # inches: a bar with its space, a panel, the picture
PARTS = (0, 3, 1, 2, 4)  # of the methods' colours: neighbours far apart in lightness
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
    wide = max(names + min(PANEL * len(panels), WIDEST - names), 0.085 * len(title) + 0.3)
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
        axis.set_xlim(0, (1.32 if len(panels) < 3 else 1.45) * most)
        axis.set_ylim(len(panel) - 0.45, -0.55)
        axis.set_title(name, fontsize=9, color=INK)
        axis.set_yticks(range(len(panel)), list(panel) if axis is axes[0] else [""] * len(panel))
        axis.set_xticks([])
        axis.tick_params(length=0, labelcolor=INK)
        for side in ("top", "right", "bottom"):
            axis.spines[side].set_visible(False)
        axis.spines["left"].set_color(QUIET)


def stacked_bars(ways: Mapping[str, Mapping[str, float]], *, title: str = "") -> Picture:
    """Draw `ways[way][part]` in bytes: a bar for each way, made of its parts, all on one scale."""
    if not ways or not all(ways.values()):
        raise ValueError(
            "stacked bars need a way or more with a part or more: {way: {part: bytes}}"
        )
    parts = list(next(iter(ways.values())))
    for way, row in ways.items():
        if list(row) != parts:
            raise ValueError(f"{way!r} has the parts {list(row)}, the first way {parts}")
        if min(row.values()) < 0:
            raise ValueError(f"{way!r} has fewer than 0 bytes: {min(row.values())}")
    if len(parts) > len(PARTS):
        raise ValueError(f"{len(parts)} parts; {len(PARTS)} can be told apart at a glance")
    if not any(any(row.values()) for row in ways.values()):
        raise ValueError("no way has a byte: there is no bar to draw")
    size = (max(7.6, 0.085 * len(title) + 0.3), HIGH * len(ways) + (1.3 if title else 1.0))
    alt = _in_words(ways, title)
    return draw(size, alt, lambda figure: _paint_stacked(figure, ways, parts, title))


def _paint_stacked(figure, ways: Mapping, parts: list[str], title: str) -> None:
    axis = figure.subplots()
    if title:
        figure.suptitle(title, fontsize=10, color=INK)
    most = max(sum(row.values()) for row in ways.values())
    unit, size = next(u for u in _UNITS if most >= u[1] or u[1] == 1.0)
    for y, row in enumerate(ways.values()):
        left = 0.0
        for part, shade in zip(parts, map(method, PARTS), strict=False):
            wide = row[part] / size
            axis.barh(y, wide, left=left, height=0.7, color=shade, edgecolor="#ffffff",
                      linewidth=0.5, label=None if y else part)  # fmt: skip
            if row[part] > 0.1 * most:  # else there is no room for a number
                axis.text(left + wide / 2, y, shown(row[part]), ha="center", va="center",
                          fontsize=8, color=ink_on(shade))  # fmt: skip
            left += wide
        axis.text(left + 0.012 * most / size, y, shown(sum(row.values())), va="center", fontsize=9,
                  fontweight="bold", color=INK)  # fmt: skip
    axis.set_xlim(0, 1.16 * most / size)
    axis.set_ylim(len(ways) - 0.45, -0.55)
    axis.set_yticks(range(len(ways)), list(ways), color=INK)
    axis.set_xlabel(unit)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_color(QUIET)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(parts), frameon=False, fontsize=8)


def _in_words(panels: Mapping[str, Mapping[str, float]], title: str) -> str:
    told = [
        f"{name}: {', '.join(f'{way} {shown(nbytes)}' for way, nbytes in panel.items())}."
        for name, panel in panels.items()
    ]
    return f"{title + '. ' if title else ''}{' '.join(told)}"
