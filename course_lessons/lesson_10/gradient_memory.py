"""A rank's gradient memory while backward passes run, with a line for each way to store gradients.

A line connects the counts at each gradient's arrival, and ends with the memory after the last
backward pass. Lesson 10 draws stages 0, 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_classroom.figures.bars import shown
from course_classroom.figures.colours import QUIET, Picture, draw, in_words, line_look

Counts = Sequence[Sequence[float]]


def gradient_memory(ways: Mapping[str, Counts], *, title: str = "") -> Picture:
    """Draw `ways[way][backward]`, the bytes held after each gradient of each backward pass."""
    words = {
        way: [
            f"in backward {number} from {shown(held[0])} to {shown(held[-1])}, at most "
            f"{shown(max(held))}"
            for number, held in enumerate(counts, 1)
        ]
        for way, counts in ways.items()
    }
    alt = in_words("Gradients held", words, between="; ")
    return draw((6.4, 3.4), alt, lambda figure: _paint(figure, ways), title)


def _paint(figure, ways: Mapping[str, Counts]) -> None:
    axis = figure.subplots()
    for i, (way, counts) in enumerate(ways.items()):
        every = [nbytes / 1e3 for backward in counts for nbytes in backward]
        look = line_look(i, linewidth=1.6, drawstyle="steps-post")
        axis.plot(range(1, len(every) + 1), every, label=way, **look)
    end = 0.5
    for number, backward in enumerate(next(iter(ways.values())), 1):
        begin, end = end, end + len(backward)
        if number > 1:
            axis.axvline(begin, color=QUIET, linewidth=0.8, linestyle=":")
        look = {"color": QUIET, "fontsize": 8, "ha": "center"}
        look["transform"] = axis.get_xaxis_transform()
        axis.text((begin + end) / 2, 0.02, f"backward {number}", **look)
    axis.set_ylim(bottom=0)
    axis.set(
        xlim=(0.5, end),
        xlabel="gradients received, from the last layer to the first",
        ylabel="held, kB",
    )
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(ways))
