"""Two programs, one above the other: a forward pass, and the backward pass as its transpose.

A box is a step, with the calls that the ledger booked while it ran. The lower row is read from
right to left. Lesson 03 draws the first such picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from course_classroom.figures.colours import INK, PAPER, QUIET, Picture, draw, ink_on
from course_classroom.figures.shapes import arrow, in_inches, label, rounded

if TYPE_CHECKING:
    from course_lib.ledger.book import Span

WIDE, HIGH, GAP = 0.86, 0.62, 0.66  # a box and the arrow next to it, in inches
UP, DOWN = 0.5, 1.65  # y of the centres of the two rows
LABEL = 0.62  # for the name of a row
NOTHING = "sends nothing"


class Step(NamedTuple):
    """A step of a program: the messages of one rank in its forward and its backward pass."""

    name: str
    there: Sequence[Span]
    back: Sequence[Span]
    gives: str = ""  # the layout of its output
    takes_back: str = ""  # the layout of the gradient that it receives


def transpose(
    steps: Sequence[Step], *, start: tuple[str, str] = ("", ""), title: str = ""
) -> Picture:
    """Draw a program and its transpose. `start` has the layouts of input and gradient.

    The words in a box come only from the spans; a box that sends is dark.
    """
    places = [start, *[(step.gives, step.takes_back) for step in steps]]

    def paint(figure) -> None:
        axis = in_inches(figure)
        for row, said in ((UP, "forward"), (DOWN, "backward")):
            axis.text(0.03, row, said, ha="left", va="center", fontsize=8)
        for i, step in enumerate(steps):
            left = LABEL + GAP + i * (WIDE + GAP)
            _box(axis, left, UP, step.name, step.there)
            _box(axis, left, DOWN, f"{step.name}ᵀ", step.back)
        for i, (there, back) in enumerate(places):
            left = LABEL + i * (WIDE + GAP)
            _arrow(axis, left, left + GAP, UP, there)
            _arrow(axis, left + GAP, left, DOWN, back)

    there = "; ".join(f"{step.name} {_sent(step.there)}" for step in steps)
    back = "; ".join(f"{step.name} {_sent(step.back)}" for step in reversed(steps))
    words = (
        f"A program and its transpose, step by step. Forward pass, from left to right: {there}. "
        f"Backward pass, from right to left: {back}."
    )
    return draw((len(steps) * (WIDE + GAP) + GAP + LABEL, 2.15), words, paint, title)


def _box(axis, left: float, middle: float, name: str, spans: Sequence[Span]) -> None:
    fill, centre = INK if spans else PAPER, left + WIDE / 2
    look = {"facecolor": fill, "edgecolor": QUIET, "linewidth": 0.8, "zorder": 2}
    rounded(axis, left, middle - HIGH / 2, WIDE, HIGH, **look)
    look = {"color": ink_on(fill), "zorder": 3}
    label(axis, centre, middle - 0.13, name, fontsize=9, fontweight="bold", **look)
    said = "\n".join(f"{span.op}\n{span.payload:,} bytes" for span in spans) or NOTHING
    label(axis, centre, middle + 0.12, said, fontsize=6.5, linespacing=1.15, **look)


def _arrow(axis, start: float, stop: float, y: float, layout: str) -> None:
    arrow(axis, (start, y), (stop, y), color=QUIET, linewidth=1.0, shrinkA=2, shrinkB=2)
    axis.text((start + stop) / 2, y - 0.09, layout, ha="center", va="bottom", fontsize=7)


def _sent(spans: Sequence[Span]) -> str:
    calls = [f"{span.op} of {span.payload:,} bytes" for span in spans]
    return f"sends {' and '.join(calls)}" if calls else NOTHING
