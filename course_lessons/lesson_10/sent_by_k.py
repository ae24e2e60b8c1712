"""Bytes that a step sends, by number of micro-batches, with a line for each way.

If lines coincide, the later one is thinner and dashed, so that both are visible. Lesson 10 draws
the cost of accumulation.
"""

from __future__ import annotations

from collections.abc import Mapping

from course_classroom.figures.colours import Picture, draw, in_words, mark_look


def sent_by_k(ways: Mapping[str, Mapping[int, float]], *, unit: str, title: str = "") -> Picture:
    """Draw `ways[way][k]`, the amount that a step of k micro-batches sends, in the named unit."""
    ways = {way: dict(sorted(sent.items())) for way, sent in ways.items()}

    def paint(figure) -> None:
        axis = figure.subplots()
        for i, (way, sent) in enumerate(ways.items()):
            style = {"linewidth": 1.3, "linestyle": "--"} if i else {"linewidth": 2.2}
            look = mark_look(i, markersize=9 - 2 * (i % 4), **style)
            axis.plot(list(sent), list(sent.values()), label=way, **look)
        axis.set_xticks(sorted({k for sent in ways.values() for k in sent}))
        axis.set_ylim(bottom=0)
        axis.set(xlabel="micro-batches in a step, k", ylabel=f"sent by a rank, {unit}")
        axis.grid()
        axis.legend()

    words = {
        way: [f"{value:.3g} at k = {k}" for k, value in sent.items()] for way, sent in ways.items()
    }
    alt = in_words(f"Sent by a rank in a step, in {unit}", words)
    return draw((6.0, 3.3), alt, paint, title)
