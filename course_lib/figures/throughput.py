"""Tokens per second against the batch, as measured, with the batch at which two ways are even.

Points are what was measured, a line is what a model of the time says between them. A marked batch
is drawn as an upright line with its words. Both axes are logarithmic: a ratio is a distance.
Lesson 14 draws streamed weights beside a cut model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from course_lib.figures.colours import INK, Picture, draw, line_of_method, marker_of_method

POINTS = 64  # of a model's line
EVEN = ("--", ":", "-.")


def throughput(
    ways: Mapping[str, Mapping[int, float]],
    *,
    models: Mapping[str, Callable[[float], float]] | None = None,
    even: Mapping[str, float] | None = None,
    title: str = "",
) -> Picture:
    """Draw `ways[way][rows]`, tokens per second measured with so many rows in all.

    `models[way](rows)` is the line beside a way's points; `even` names batches to be marked, such
    as {"even in bytes": 23, "even in time": 11.5}.
    """
    models, even = dict(models or {}), dict(even or {})
    size = (6.4, 3.6)
    return draw(size, _in_words(ways, even), lambda f: _paint(f, ways, models, even), title)


def _paint(figure, ways: Mapping, models: Mapping, even: Mapping) -> None:
    axis = figure.subplots()
    every = sorted({rows for measured in ways.values() for rows in measured} | set(even.values()))
    for i, (way, measured) in enumerate(ways.items()):
        rows = sorted(measured)
        line, colour = "none" if way in models else "-", line_of_method(i)
        axis.plot(rows, [measured[b] for b in rows], label=way, color=colour, linestyle=line,
                  marker=marker_of_method(i), markersize=6, linewidth=1.4)  # fmt: skip
        if way in models:
            first, last = every[0], every[-1]
            between = [first * (last / first) ** (j / (POINTS - 1)) for j in range(POINTS)]
            axis.plot(between, [models[way](b) for b in between], color=colour, linewidth=1.2)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted({b for m in ways.values() for b in m}))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.minorticks_off()
    axis.set_yscale("log")
    for i, (words, rows) in enumerate(even.items()):
        axis.axvline(rows, color=INK, linewidth=1.0, linestyle=EVEN[i % len(EVEN)],
                     label=f"{words}: {rows:.3g} rows")  # fmt: skip
    axis.set_xlabel("rows in all, of all ranks")
    axis.set_ylabel("tokens per second, of all ranks")
    axis.grid()
    axis.legend()


def _in_words(ways: Mapping, even: Mapping) -> str:
    told = [
        f"{way}: {', '.join(f'{value:.3g} at {rows} rows' for rows, value in sorted(m.items()))}."
        for way, m in ways.items()
    ]
    marks = [f"{words} at {rows:.3g} rows" for words, rows in even.items()]
    marked = f" Marked: {'; '.join(marks)}." if marks else ""
    return f"Tokens per second by rows. {' '.join(told)}{marked}"
