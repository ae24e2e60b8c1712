"""Bytes as stacked bars: one bar for each setting, one segment for each part of it, one scale.

Lesson 12 draws what each setting keeps on device, host and disk, lesson 13 what each stage holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from course_lib.figures.bars import shown
from course_lib.figures.colours import (
    INK,
    METHODS,
    QUIET,
    Picture,
    draw,
    hatch_of_method,
    ink_on,
    method,
)

ROW, WIDE = 0.42, 7.6  # inches: of a bar with its space, of the picture


def stacked(
    kept: Mapping[str, Mapping[str, float]],
    *,
    title: str = "",
    say: Callable[[float], str] = shown,
) -> Picture:
    """Draw `kept[setting][part]`; every setting has the same parts. `say` writes an amount."""
    if not kept or not any(any(parts.values()) for parts in kept.values()):
        raise ValueError("nothing is kept: there is no bar to draw")
    parts = list(next(iter(kept.values())))
    for setting, amounts in kept.items():
        if list(amounts) != parts:
            raise ValueError(f"{setting} has the parts {list(amounts)}, the first one {parts}")
        if min(amounts.values()) < 0:
            raise ValueError(f"{setting} has a part below 0: {dict(amounts)}")
    if len(parts) > len(METHODS):
        raise ValueError(f"{len(parts)} parts; {len(METHODS)} can be told apart at a glance")
    size = (max(WIDE, 0.085 * len(title) + 0.3), ROW * len(kept) + (0.95 if title else 0.65))
    alt = _in_words(kept, title, say)
    return draw(size, alt, lambda figure: _paint(figure, kept, parts, title, say))


def _paint(figure, kept, parts: list[str], title: str, say: Callable[[float], str]) -> None:
    axis = figure.subplots()
    if title:
        figure.suptitle(title, fontsize=10, color=INK)
    most = max(sum(amounts.values()) for amounts in kept.values())
    for y, amounts in enumerate(kept.values()):
        left = 0.0
        for i, part in enumerate(parts):
            wide, shade, hatch = amounts[part], method(i), hatch_of_method(i)
            look = {"color": shade, "edgecolor": QUIET, "hatch": hatch, "linewidth": 0.6}
            axis.barh(y, wide, left=left, height=0.66, label=part if not y else None, **look)
            if wide > 0.1 * most:  # else there is no room for a number
                axis.text(
                    left + wide / 2, y, say(wide), ha="center", va="center", fontsize=8,
                    color=ink_on(shade),
                    bbox={"facecolor": shade, "edgecolor": "none", "pad": 0.8},
                )  # fmt: skip
            left += wide
        axis.text(left + 0.01 * most, y, say(left), va="center", fontsize=9, color=INK)
    axis.set_xlim(0, 1.14 * most)
    axis.set_ylim(len(kept) - 0.5, -0.5)
    axis.set_yticks(range(len(kept)), list(kept), color=INK)
    axis.set_xticks([])
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(parts), frameon=False, fontsize=8)


def _in_words(kept, title: str, say: Callable[[float], str]) -> str:
    told = [
        f"{setting}: {', '.join(f'{part} {say(amount)}' for part, amount in parts.items())}; "
        f"in all {say(sum(parts.values()))}."
        for setting, parts in kept.items()
    ]
    return f"{title + '. ' if title else ''}{' '.join(told)}"
