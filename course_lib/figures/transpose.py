"""Two programs, one above the other: a forward, and the backward that is its transpose.

A box a step, with what the ledger booked while that step ran; the lower row is read from right to
left. Lesson 03 draws the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from course_lib.figures.colours import INK, PAPER, QUIET, Picture, draw, ink_on
from course_lib.figures.shapes import arrow, label

WIDE, HIGH, GAP = 0.86, 0.62, 0.66  # a box and the arrow beside it, in inches
UP, DOWN = 1.5, 0.35  # where the two rows stand
LABEL = 0.62  # for the name of a row
NOTHING = "sends nothing"


class Span(Protocol):
    """What the picture needs to know of a call; a ledger's spans do."""

    op: str
    payload: int


class Step(NamedTuple):
    """One step of a program: what one rank sent in it, on the way there and on the way back."""

    name: str
    there: Sequence[Span]
    back: Sequence[Span]
    gives: str = ""  # the layout of what it hands on
    takes_back: str = ""  # and of the gradient that comes back to it


def transpose(
    steps: Sequence[Step], *, start: tuple[str, str] = ("", ""), title: str = ""
) -> Picture:
    """Draw a program and its transpose. `start`: the layouts of the first input and its gradient.

    What is written in a box comes from the spans alone; a box that sends is dark.
    """
    places = [start, *[(step.gives, step.takes_back) for step in steps]]
    width = len(steps) * (WIDE + GAP) + GAP + LABEL
    alt = _in_words(steps)
    size = (width, 2.15)

    def paint(figure) -> None:
        axis = figure.subplots()
        axis.set_xlim(-LABEL, width - LABEL)
        axis.set_ylim(-0.1, 2.0)
        axis.axis("off")
        for row, said in ((UP, "forward"), (DOWN, "backward")):
            axis.text(0.03 - LABEL, row, said, ha="left", va="center", fontsize=8)
        for i, step in enumerate(steps):
            left = GAP + i * (WIDE + GAP)
            _box(axis, (left, UP), step.name, step.there)
            _box(axis, (left, DOWN), f"{step.name}ᵀ", step.back)
        for i, (there, back) in enumerate(places):
            left = i * (WIDE + GAP)
            _arrow(axis, left, left + GAP, UP, there)
            _arrow(axis, left + GAP, left, DOWN, back)

    return draw(size, alt, paint, title)


def _box(axis, place: tuple[float, float], name: str, spans: Sequence[Span]) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, middle = place
    fill, shape = INK if spans else PAPER, "round,pad=0,rounding_size=0.07"
    look = {"facecolor": fill, "edgecolor": QUIET, "linewidth": 0.8, "zorder": 2}
    corner = (left, middle - HIGH / 2)
    axis.add_patch(FancyBboxPatch(corner, WIDE, HIGH, boxstyle=shape, **look))
    centre, look = left + WIDE / 2, {"color": ink_on(fill), "zorder": 3}
    label(axis, centre, middle + 0.13, name, fontsize=9, fontweight="bold", **look)
    said = "\n".join(f"{span.op}\n{span.payload:,} bytes" for span in spans) or NOTHING
    label(axis, centre, middle - 0.12, said, fontsize=6.5, linespacing=1.15, **look)


def _arrow(axis, start: float, stop: float, height: float, layout: str) -> None:
    arrow(axis, (start, height), (stop, height), color=QUIET, linewidth=1.0, shrinkA=2, shrinkB=2)
    middle = (start + stop) / 2
    axis.text(middle, height + 0.09, layout, ha="center", va="bottom", fontsize=7)


def _in_words(steps: Sequence[Step]) -> str:
    there = "; ".join(f"{step.name} {_sent(step.there)}" for step in steps)
    back = "; ".join(f"{step.name} {_sent(step.back)}" for step in reversed(steps))
    return (
        f"A program and its transpose, step by step. Forward, from left to right: {there}. "
        f"Backward, from right to left: {back}."
    )


def _sent(spans: Sequence[Span]) -> str:
    calls = [f"{span.op} of {span.payload:,} bytes" for span in spans]
    return f"sends {' and '.join(calls)}" if calls else NOTHING
