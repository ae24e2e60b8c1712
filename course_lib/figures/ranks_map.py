"""Where everything is: the notebook, its ranks, and the device that each of them computes on.

Drawn from what the ranks say of themselves. Lesson 00 draws the machine that it is read on.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.figures.colours import INK, QUIET, Picture, draw, hatch_of_rank, ink_on, of_rank

WIDE, HIGH, GAP = 1.15, 0.46, 0.3  # a box and the space beside it, in inches
PAPER = "#f2f2f2"


def ranks_map(devices: Sequence[str], backend: str, *, title: str = "") -> Picture:
    """Draw which rank computes on which device: `devices[rank]` is its name, like "cpu"."""
    if not devices:
        raise ValueError("there are no ranks to draw: give the device of each, like ['cpu', 'cpu']")
    places = list(dict.fromkeys(devices))  # each device once, in the order of its first rank
    width = max(len(devices), len(places)) * (WIDE + GAP) + GAP + 1.0
    alt = _in_words(devices, backend, places, title)
    size = (width, 2.9 if title else 2.6)
    return draw(size, alt, lambda figure: _paint(figure, devices, backend, places, title, width))


def _paint(figure, devices, backend, places, title, width) -> None:
    axis = figure.subplots()
    axis.set_xlim(0, width)
    axis.set_ylim(-0.15, 2.35)
    axis.axis("off")
    if title:
        figure.suptitle(title, fontsize=10, color=INK)
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
        axis.text(middle, row + 0.06, backend, ha="center", va="bottom", fontsize=8, color=INK)
    _box(axis, notebook, "this notebook", PAPER, "")
    for r, x in enumerate(ranks):
        _box(axis, (x, row), f"rank {r}", of_rank(r), hatch_of_rank(r))
    for device, x in homes.items():
        _box(axis, (x, ground), device, PAPER, "")


def _centres(count: int, width: float) -> list[float]:
    start = width / 2 - (count - 1) / 2 * (WIDE + GAP)
    return [start + i * (WIDE + GAP) for i in range(count)]


def _line(axis, a, b, colour, thick, style) -> None:
    axis.plot([a[0], b[0]], [a[1], b[1]], color=colour, linewidth=thick, linestyle=style, zorder=1)


def _box(axis, centre, text: str, colour: str, hatch: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = (centre[0] - WIDE / 2, centre[1] - HIGH / 2)
    axis.add_patch(
        FancyBboxPatch(
            corner, WIDE, HIGH, boxstyle="round,pad=0,rounding_size=0.08", facecolor=colour,
            edgecolor=QUIET if colour == PAPER else "#ffffff", linewidth=0.8, hatch=hatch, zorder=2,
        )
    )  # fmt: skip
    axis.text(
        *centre, text, ha="center", va="center", fontsize=9, color=ink_on(colour), zorder=3,
        bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.0},
    )  # fmt: skip


def _in_words(devices, backend: str, places: list[str], title: str) -> str:
    head = f"{title}. " if title else ""
    on = "; ".join(
        f"{' and '.join(f'rank {r}' for r, d in enumerate(devices) if d == place)} on {place}"
        for place in places
    )
    speak = f" The ranks speak {backend} to each other." if len(devices) > 1 else ""
    return f"{head}The notebook runs cells on {len(devices)} ranks: {on}.{speak}"
