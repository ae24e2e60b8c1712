"""What a rank holds of gradients while backwards run: a line for each way of keeping them.

A line is drawn through what was counted as each gradient came, and ends with what is left when the
last backward is over. Lesson 10 draws stages 0, 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.figures.bars import shown
from course_lib.figures.colours import QUIET, Picture, dashes_of_method, draw, line_of_method

Counts = Sequence[Sequence[float]]


def gradient_memory(ways: Mapping[str, Counts], *, title: str = "") -> Picture:
    """Draw `ways[way][backward]`, the bytes held after each gradient of each backward."""
    return draw((6.4, 3.4), _in_words(ways), lambda figure: _paint(figure, ways), title)


def _paint(figure, ways: Mapping[str, Counts]) -> None:
    axis = figure.subplots()
    for i, (way, counts) in enumerate(ways.items()):
        every = [nbytes / 1e3 for backward in counts for nbytes in backward]
        axis.plot(range(1, len(every) + 1), every, label=way,
                  color=line_of_method(i), linestyle=dashes_of_method(i), linewidth=1.6,
                  drawstyle="steps-post")  # fmt: skip
    ends, at = [], 0.5
    for backward in next(iter(ways.values())):
        ends.append((at, at + len(backward)))
        at += len(backward)
    for number, (begin, end) in enumerate(ends, 1):
        if number > 1:
            axis.axvline(begin, color=QUIET, linewidth=0.8, linestyle=":")
        axis.text((begin + end) / 2, 0.02, f"backward {number}", color=QUIET, fontsize=8,
                  ha="center", transform=axis.get_xaxis_transform())  # fmt: skip
    axis.set_ylim(bottom=0)
    axis.set_xlim(0.5, at)
    axis.set_xlabel("gradients that have come, from the last layer to the first")
    axis.set_ylabel("held, kB")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0),
                ncols=len(ways))  # fmt: skip


def _in_words(ways: Mapping[str, Counts]) -> str:
    told = []
    for way, counts in ways.items():
        each = "; ".join(
            f"in backward {number} from {shown(backward[0])} to {shown(backward[-1])}, at most "
            f"{shown(max(backward))}"
            for number, backward in enumerate(counts, 1)
        )
        told.append(f"{way}: {each}.")
    return f"Gradients held. {' '.join(told)}"
