"""A map of the notebook, its ranks, and the device on which each rank computes.

The picture uses the ranks' own reports. Lesson 00 draws the reader's machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_classroom.figures.colours import INK, PAPER, QUIET, Picture, draw, rank_look
from course_classroom.figures.shapes import in_inches, label, rounded

WIDE, HIGH, GAP = 1.15, 0.46, 0.3  # a box and the space next to it, in inches
TOP, ROW, GROUND = 0.3, 1.2, 2.2  # y of the centres of notebook, ranks and devices


def ranks_map(devices: Sequence[str], backend: str, *, title: str = "") -> Picture:
    """Draw the ranks with their devices: `devices[rank]` is a name such as "cpu"."""
    places = list(dict.fromkeys(devices))  # each device once, in the order of its first rank
    width = len(devices) * (WIDE + GAP) + GAP + 1.0
    ranks = _centres(len(devices), width)
    homes = dict(zip(places, _centres(len(places), width), strict=True))

    def paint(figure) -> None:
        axis = in_inches(figure)
        for x, device in zip(ranks, devices, strict=True):
            axis.plot([width / 2, x], [TOP, ROW], color=QUIET, linewidth=0.8, zorder=1)
            axis.plot([x, homes[device]], [ROW, GROUND], ":", color=QUIET, linewidth=0.8, zorder=1)
        if len(ranks) > 1:
            axis.plot([ranks[0], ranks[-1]], [ROW, ROW], color=INK, linewidth=2.0, zorder=1)
            middle = (ranks[0] + ranks[1]) / 2
            axis.text(middle, ROW - 0.06, backend, ha="center", va="bottom", fontsize=8)
        paper = {"facecolor": PAPER, "edgecolor": QUIET}
        _box(axis, width / 2, TOP, "this notebook", paper)
        for rank, x in enumerate(ranks):
            _box(axis, x, ROW, f"rank {rank}", rank_look(rank))
        for device, x in homes.items():
            _box(axis, x, GROUND, device, paper)

    on = "; ".join(
        f"{' and '.join(f'rank {r}' for r, d in enumerate(devices) if d == place)} on {place}"
        for place in places
    )
    speak = f" The ranks communicate over {backend}." if len(devices) > 1 else ""
    words = f"The notebook runs cells on {len(devices)} ranks: {on}.{speak}"
    return draw((width, 2.5), words, paint, title)


def _centres(count: int, width: float) -> list[float]:
    start = width / 2 - (count - 1) / 2 * (WIDE + GAP)
    return [start + i * (WIDE + GAP) for i in range(count)]


def _box(axis, x: float, y: float, text: str, look) -> None:
    look = {"linewidth": 0.8, "zorder": 2, **look}
    rounded(axis, x - WIDE / 2, y - HIGH / 2, WIDE, HIGH, **look)
    label(axis, x, y, text, on=look["facecolor"], fontsize=9, zorder=3)
