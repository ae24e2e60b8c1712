"""Measured tokens per second by batch, with the batches at which two ways are equal.

Points are measurements, and lines come from a model of the time. A marked batch is a labelled
vertical line. Both axes are logarithmic, so a ratio is a distance. Lesson 14 compares streamed
weights with a sharded model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle

from course_classroom.figures.bandwidth import smooth
from course_classroom.figures.colours import INK, Picture, draw, in_words, mark_look

EVEN = ("--", ":", "-.")


def throughput(
    ways: Mapping[str, Mapping[int, float]],
    *,
    models: Mapping[str, Callable[[float], float]],
    even: Mapping[str, float],
    title: str = "",
) -> Picture:
    """Draw `ways[way][rows]`, measured tokens per second for `rows` rows in total.

    `models[way](rows)` is the line for a way's points. `even` names batches to mark, such as
    `{"even in bytes": 23, "even in time": 11.5}`.
    """
    ways = {way: dict(sorted(measured.items())) for way, measured in ways.items()}
    words = {
        way: [f"{value:.3g} at {rows} rows" for rows, value in measured.items()]
        for way, measured in ways.items()
    }
    alt = in_words("Tokens per second by rows", words)
    marks = "; ".join(f"{words} at {rows:.3g} rows" for words, rows in even.items())
    alt += f" Marked: {marks}." if marks else ""
    return draw((6.4, 3.6), alt, lambda figure: _paint(figure, ways, models, even), title)


def _paint(figure, ways: Mapping, models: Mapping, even: Mapping) -> None:
    axis = figure.subplots()
    measured_at = sorted({rows for measured in ways.values() for rows in measured})
    ends = [*measured_at, *even.values()]
    for i, (way, measured) in enumerate(ways.items()):
        look = mark_look(i, linestyle="none" if way in models else "-", linewidth=1.4)
        axis.plot(list(measured), list(measured.values()), label=way, markersize=6, **look)
        if way in models:
            curve = smooth(ends)
            line = [models[way](rows) for rows in curve]
            axis.plot(curve, line, color=look["color"], linewidth=1.2)
    axis.set_xscale("log", base=2)
    axis.set_xticks(measured_at)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.minorticks_off()
    axis.set_yscale("log")
    for (words, rows), dashes in zip(even.items(), cycle(EVEN), strict=False):
        axis.axvline(rows, color=INK, linewidth=1.0, linestyle=dashes,
                     label=f"{words}: {rows:.3g} rows")  # fmt: skip
    axis.set(xlabel="rows in total, of all ranks", ylabel="tokens per second, of all ranks")
    axis.grid()
    axis.legend()
