"""Shapes that pictures share: an axis in inches, boxes, labels, arrows, legends, stacked bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.figures.colours import CARD, INK, QUIET, TITLE, ink_on


def in_inches(figure):
    """An axis over the whole card without a frame: inches from the left, and below the title."""
    wide, high = figure.get_size_inches()
    above = TITLE if figure.get_suptitle() else 0.0
    figure.set_layout_engine("none")
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_xlim(0, wide)
    axis.set_ylim(high - above, -above)
    axis.axis("off")
    return axis


def box(axis, left: float, top: float, wide: float, high: float, **look) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((left, top), wide, high, **look))


def label(axis, x: float, y: float, words: str, on: str = "", **look) -> None:
    """Words around a point; `on` is the colour under them, which covers a hatch."""
    middle = {"ha": "center", "va": "center", "fontsize": 8, "color": INK}
    if on:
        middle |= {"color": ink_on(on), "bbox": {"facecolor": on, "edgecolor": "none", "pad": 0.8}}
    axis.text(x, y, words, **{**middle, **look})


def chip(axis, x: float, y: float, words: str, sends: bool, **look) -> None:
    """An operation: dark where it sends a message."""
    frame = {"facecolor": INK if sends else CARD, "edgecolor": INK, "linewidth": 0.8}
    look = {"fontsize": 7.5, "fontweight": "bold", "linespacing": 1.2, **look}
    frame["boxstyle"] = "round,pad=0.28"
    label(axis, x, y, words, color=CARD if sends else INK, bbox=frame, **look)


def arrow(axis, start: tuple[float, float], stop: tuple[float, float], **look) -> None:
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    above = look.pop("zorder", 3)
    axis.annotate("", stop, start, arrowprops={**style, **look}, zorder=above)


def legend(figure, looks: Mapping[str, Mapping], *more, ncols: int = 0) -> None:
    """A line below the picture: a patch for each name; `more` are other marks."""
    from matplotlib.patches import Patch

    marks = [*more, *(Patch(label=name, **look) for name, look in looks.items())]
    figure.legend(handles=marks, loc="outside lower center", ncols=ncols or len(marks))


def stacked(axis, ways: Mapping[str, Sequence[float]], looks: Mapping[str, Mapping], write) -> None:
    """A bar for each way, made of parts: `looks[part]`, and `ways[way]` with a length for each.

    A part has its number where there is room for it, and the bar its sum; `write` writes them.
    """
    most = max(map(sum, ways.values()))
    for y, lengths in enumerate(ways.values()):
        left = 0.0
        for (part, look), wide in zip(looks.items(), lengths, strict=True):
            axis.barh(y, wide, left=left, height=0.7, label=None if y else part, **look)
            if wide > 0.075 * most:
                shade = look["facecolor"]
                label(axis, left + wide / 2, y, write(wide), on=shade, fontweight="bold")
            left += wide
        axis.text(left + 0.012 * most, y, write(left), va="center", fontweight="bold")
    axis.set_xlim(0, 1.15 * most)
    axis.set_ylim(len(ways) - 0.45, -0.55)
    axis.set_yticks(range(len(ways)), list(ways), color=INK)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_color(QUIET)
    axis.figure.legend(loc="outside lower center", ncols=len(looks))
