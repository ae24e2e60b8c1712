"""Shared shapes of pictures: an axis in inches, boxes, labels, arrows, legends, stacked bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from course_classroom.figures.colours import CARD, INK, QUIET, TITLE, ink_on, of_rank, rank_look


def in_inches(figure):
    """Return a frameless axis over the figure, in inches from the left edge and below the title."""
    wide, high = figure.get_size_inches()
    above = TITLE if figure.get_suptitle() else 0.0
    figure.set_layout_engine("none")
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, wide), ylim=(high - above, -above))
    axis.axis("off")
    return axis


def box(axis, left: float, top: float, wide: float, high: float, **look) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((left, top), wide, high, **look))


def rounded(axis, left: float, top: float, wide: float, high: float, radius=0.08, **look) -> None:
    """Draw a box with round corners."""
    from matplotlib.patches import FancyBboxPatch

    shape = f"round,pad=0,rounding_size={radius}"
    axis.add_patch(FancyBboxPatch((left, top), wide, high, boxstyle=shape, **look))


def rank_box(axis, at: Sequence[float], rank: int, words: str = "", edge=0.0, **look) -> None:
    """Draw a rank's box with words in its middle; `at` is (left, top, width, height)."""
    left, top, wide, high = at
    box(axis, *at, **{**rank_look(rank), "linewidth": edge})
    if words:
        label(axis, left + wide / 2, top + high / 2, words, on=of_rank(rank), **look)


def stripe(axis, left: float, top: float, side: float, by: str, rank: int, n: int, **look) -> None:
    """Draw rank `rank`'s shard of a square weight, sharded over n ranks by "columns" or "rows"."""
    step = side / n
    if by == "columns":
        box(axis, left + rank * step, top, step, side, **{**rank_look(rank), **look})
    else:
        box(axis, left, top + rank * step, side, step, **{**rank_look(rank), **look})


def tiled(axis, columns: int, rows: int, under: Sequence = (), beside: Sequence = ()) -> None:
    """Set up frameless axes for square tiles, with names below the columns and next to the rows."""
    axis.set(xlim=(-0.05, columns + 0.05), ylim=(rows + 0.05, -0.05), aspect="equal")
    axis.set_xticks([column + 0.5 for column in range(len(under))], under)
    axis.set_yticks([row + 0.5 for row in range(len(beside))], beside)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def nothing_held(axis, left: float, top: float, wide: float, high: float) -> None:
    """Draw a dotted outline for a tensor that is not in memory."""
    look = {"facecolor": "none", "edgecolor": QUIET, "linestyle": ":", "linewidth": 0.8}
    box(axis, left, top, wide, high, **look)


def label(axis, x: float, y: float, words: str, on: str = "", **look) -> None:
    """Write words centred on a point; `on` is their background colour, which covers a hatch."""
    middle = {"ha": "center", "va": "center", "fontsize": 8, "color": INK}
    if on:
        middle |= {"color": ink_on(on), "bbox": {"facecolor": on, "edgecolor": "none", "pad": 0.8}}
    axis.text(x, y, words, **{**middle, **look})


def chip(axis, x: float, y: float, words: str, sends: bool, **look) -> None:
    """Draw the label of an operation, dark if the operation sends a message."""
    frame = {"facecolor": INK if sends else CARD, "edgecolor": INK, "linewidth": 0.8}
    look = {"fontsize": 7.5, "fontweight": "bold", "linespacing": 1.2, **look}
    frame["boxstyle"] = "round,pad=0.28"
    label(axis, x, y, words, color=CARD if sends else INK, bbox=frame, **look)


def arrow(axis, start: tuple[float, float], stop: tuple[float, float], **look) -> None:
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    above = look.pop("zorder", 3)
    axis.annotate("", stop, start, arrowprops={**style, **look}, zorder=above)


def runs(keys: Iterable) -> list[tuple]:
    """Return the runs of equal neighbours as (value, start, stop)."""
    found, start = [], 0
    for key, group in groupby(keys):
        stop = start + len(list(group))
        found.append((key, start, stop))
        start = stop
    return found


def legend(figure, looks: Mapping[str, Mapping], *more, ncols: int = 0) -> None:
    """Draw a legend below the picture: a patch for each name, plus the marks `more`."""
    from matplotlib.patches import Patch

    marks = [*more, *(Patch(label=name, **look) for name, look in looks.items())]
    figure.legend(handles=marks, loc="outside lower center", ncols=ncols or len(marks))


def stacked(axis, ways: Mapping[str, Sequence[float]], looks: Mapping[str, Mapping], write) -> None:
    """Draw a stacked bar for each way: `ways[way]` has its part lengths, `looks[part]` the styles.

    Each part shows its length if there is room, and each bar its sum; `write` formats both.
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
    axis.set(xlim=(0, 1.15 * most), ylim=(len(ways) - 0.45, -0.55))
    axis.set_yticks(range(len(ways)), list(ways), color=INK)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_color(QUIET)
    axis.figure.legend(loc="outside lower center", ncols=len(looks))
