"""Where everything is: the notebook, its ranks, and the device that each of them computes on.

Drawn from what the ranks say of themselves. Lesson 00 draws the machine that it is read on.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.figures.colours import INK, PAPER, QUIET, Picture, draw, rank_look
from course_lib.figures.shapes import label

WIDE, HIGH, GAP = 1.15, 0.46, 0.3  # a box and the space beside it, in inches


def ranks_map(devices: Sequence[str], backend: str, *, title: str = "") -> Picture:
    """Draw which rank computes on which device: `devices[rank]` is its name, like "cpu"."""
    places = list(dict.fromkeys(devices))  # each device once, in the order of its first rank
    width = max(len(devices), len(places)) * (WIDE + GAP) + GAP + 1.0
    alt = _in_words(devices, backend, places)
    size = (width, 2.6)
    return draw(size, alt, lambda figure: _paint(figure, devices, backend, places, width), title)


def _paint(figure, devices, backend, places, width) -> None:
    axis = figure.subplots()
    axis.set_xlim(0, width)
    axis.set_ylim(-0.15, 2.35)
    axis.axis("off")
    ranks = _centres(len(devices), width)
    homes = dict(zip(places, _centres(len(places), width), strict=True))
    notebook, row, ground = (width / 2, 2.05), 1.15, 0.15
    for x in ranks:
        _line(axis, notebook, (x, row), QUIET, 0.8, "-")
    for x, device in zip(ranks, devices, strict=True):
        _line(axis, (x, row), (homes[device], ground), QUIET, 0.8, ":")
    if len(ranks) > 1:
        _line(axis, (ranks[0], row), (ranks[-1], row), INK, 2.0, "-")
        middle = (ranks[0] + ranks[1]) / 2
        axis.text(middle, row + 0.06, backend, ha="center", va="bottom", fontsize=8)
    paper = {"facecolor": PAPER, "edgecolor": QUIET}
    _box(axis, notebook, "this notebook", paper)
    for r, x in enumerate(ranks):
        _box(axis, (x, row), f"rank {r}", rank_look(r))
    for device, x in homes.items():
        _box(axis, (x, ground), device, paper)


def _centres(count: int, width: float) -> list[float]:
    start = width / 2 - (count - 1) / 2 * (WIDE + GAP)
    return [start + i * (WIDE + GAP) for i in range(count)]


def _line(axis, a, b, colour, thick, style) -> None:
    axis.plot([a[0], b[0]], [a[1], b[1]], color=colour, linewidth=thick, linestyle=style, zorder=1)


def _box(axis, centre, text: str, look) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner, shape = (centre[0] - WIDE / 2, centre[1] - HIGH / 2), "round,pad=0,rounding_size=0.08"
    look = {"linewidth": 0.8, "boxstyle": shape, "zorder": 2, **look}
    axis.add_patch(FancyBboxPatch(corner, WIDE, HIGH, **look))
    label(axis, *centre, text, on=look["facecolor"], fontsize=9, zorder=3)


def _in_words(devices, backend: str, places: list[str]) -> str:
    on = "; ".join(
        f"{' and '.join(f'rank {r}' for r, d in enumerate(devices) if d == place)} on {place}"
        for place in places
    )
    speak = f" The ranks speak {backend} to each other." if len(devices) > 1 else ""
    return f"The notebook runs cells on {len(devices)} ranks: {on}.{speak}"
