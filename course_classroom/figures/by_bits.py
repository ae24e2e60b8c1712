"""Cost of rounding against the number of bits, with a point for each way and a panel per cost.

Appendix E2 draws the output error and the perplexity of a GPT with rounded weights.
"""

from __future__ import annotations

from collections.abc import Mapping

from course_classroom.figures.colours import INK, QUIET, Picture, draw, in_words, method

MARKS = "osD^vPX*"
WIDE, HIGH = 4.2, 3.6  # inches of a panel


def by_bits(
    bits: Mapping[str, float], panels: Mapping[str, Mapping[str, float]], *, title: str = ""
) -> Picture:
    """Draw `panels[cost][way]` against `bits[way]`; every panel has the same ways as `bits`."""
    words = {
        name: [f"{way} at {bits[way]:.2f} bits {cost:.4g}" for way, cost in panel.items()]
        for name, panel in panels.items()
    }
    size = (WIDE * len(panels), HIGH)
    return draw(size, in_words("", words), lambda figure: _paint(figure, bits, panels), title)


def apart(heights: list[float], least: float) -> list[float]:
    """Return the heights in the same order, moved up where two are closer than `least`."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    moved, before = list(heights), -float("inf")
    for i in order:
        before = moved[i] = max(heights[i], before + least)
    return moved


def column_of(bits: Mapping[str, float]) -> dict[str, float]:
    """Return each label's x: to the right of all points less than one bit beyond its own point."""
    return {way: max(x for x in bits.values() if x < here + 1) + 0.4 for way, here in bits.items()}


def _paint(figure, bits: Mapping[str, float], panels: Mapping) -> None:
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    columns = column_of(bits)
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        low, high = min(panel.values()), max(panel.values())
        room = (high - low) or 1.0
        labels = apart(list(panel.values()), 0.075 * room)
        for i, (way, cost) in enumerate(panel.items()):
            colour, mark = method(i), MARKS[i % len(MARKS)]
            line = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.5}
            look = {"fontsize": 8, "color": INK, "va": "center", "arrowprops": line}
            axis.annotate(way, (bits[way], cost), (columns[way], labels[i]), **look)
            axis.plot(bits[way], cost, mark, color=colour, markeredgecolor=INK, markersize=6)
        axis.set(
            xlim=(min(bits.values()) - 0.3, max(columns.values()) + 1.8),
            ylim=(low - 0.1 * room, max(high, *labels) + 0.1 * room),
            title=name,
            xlabel="bits per weight, including scales",
        )
