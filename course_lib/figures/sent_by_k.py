"""What a step sends, by the number of its micro-batches: a line for each way.

Where lines lie on each other, the later one is drawn thinner and dashed, so that both are seen.
Lesson 10 draws what accumulation costs.
"""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.figures.colours import Picture, draw, line_of_method, marker_of_method


def sent_by_k(ways: Mapping[str, Mapping[int, float]], *, unit: str, title: str = "") -> Picture:
    """Draw `ways[way][k]`, what a step of k micro-batches sends, in the named unit."""
    return draw((6.0, 3.3), _in_words(ways, unit), lambda f: _paint(f, ways, unit), title)


def _paint(figure, ways: Mapping[str, Mapping[int, float]], unit: str) -> None:
    axis = figure.subplots()
    for i, (way, sent) in enumerate(ways.items()):
        points = sorted(sent.items())
        axis.plot([k for k, _ in points], [value for _, value in points], label=way,
                  color=line_of_method(i), marker=marker_of_method(i), markersize=9 - 2 * (i % 4),
                  linewidth=2.2 if i == 0 else 1.3, linestyle="-" if i == 0 else "--")  # fmt: skip
    axis.set_xticks(sorted({k for sent in ways.values() for k in sent}))
    axis.set_ylim(bottom=0)
    axis.set_xlabel("micro-batches in a step, k")
    axis.set_ylabel(f"sent by a rank, {unit}")
    axis.grid()
    axis.legend()


def _in_words(ways: Mapping[str, Mapping[int, float]], unit: str) -> str:
    told = [
        f"{way}: {', '.join(f'{value:.3g} at k = {k}' for k, value in sorted(sent.items()))}."
        for way, sent in ways.items()
    ]
    return f"Sent by a rank in a step, in {unit}. {' '.join(told)}"
