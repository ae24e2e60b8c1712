"""Two programs, one above the other: a forward, and the backward that is its transpose.

A box a step, with what the ledger booked while that step ran; the lower row is read from right to
left. Lesson 03 draws the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from course_lib.figures.colours import INK, QUIET, Picture, draw

WIDE, HIGH, GAP = 0.86, 0.62, 0.66  # a box and the arrow beside it, in inches
UP, DOWN = 1.5, 0.35  # where the two rows stand
LABEL = 0.62  # for the name of a row
PAPER = "#f2f2f2"
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
    if not steps:
        raise ValueError("a program without a step has nothing to draw")
    places = [start, *[(step.gives, step.takes_back) for step in steps]]
    width = len(steps) * (WIDE + GAP) + GAP + LABEL
    alt = _in_words(steps, title)
    size = (width, 2.45 if title else 2.15)

    def paint(figure) -> None:
        axis = figure.subplots()
        axis.set_xlim(-LABEL, width - LABEL)
        axis.set_ylim(-0.1, 2.0)
        axis.axis("off")
        if title:
            figure.suptitle(title, fontsize=10, color=INK)
        for row, said in ((UP, "forward"), (DOWN, "backward")):
            axis.text(0.03 - LABEL, row, said, ha="left", va="center", fontsize=8, color=INK)
        for i, step in enumerate(steps):
            left = GAP + i * (WIDE + GAP)
            _box(axis, (left, UP), step.name, step.there)
            _box(axis, (left, DOWN), f"{step.name}ᵀ", step.back)
        for i, (there, back) in enumerate(places):
            left = i * (WIDE + GAP)
            _arrow(axis, left, left + GAP, UP, there)
            _arrow(axis, left + GAP, left, DOWN, back)

    return draw(size, alt, paint)


def _box(axis, place: tuple[float, float], name: str, spans: Sequence[Span]) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, middle = place
    fill, ink = (INK, "#ffffff") if spans else (PAPER, INK)
    axis.add_patch(
        FancyBboxPatch(
            (left, middle - HIGH / 2), WIDE, HIGH, boxstyle="round,pad=0,rounding_size=0.07",
            facecolor=fill, edgecolor=QUIET, linewidth=0.8, zorder=2,
        )
    )  # fmt: skip
    centre = left + WIDE / 2
    axis.text(
        centre, middle + 0.13, name, ha="center", va="center", fontsize=9, color=ink,
        fontweight="bold", zorder=3,
    )  # fmt: skip
    said = "\n".join(f"{span.op}\n{span.payload:,} bytes" for span in spans) or NOTHING
    axis.text(
        centre, middle - 0.12, said, ha="center", va="center", fontsize=6.5, color=ink,
        linespacing=1.15, zorder=3,
    )  # fmt: skip


def _arrow(axis, start: float, stop: float, height: float, layout: str) -> None:
    look = {"arrowstyle": "-|>", "color": QUIET, "linewidth": 1.0, "shrinkA": 2, "shrinkB": 2}
    axis.annotate("", (stop, height), (start, height), arrowprops=look)
    middle = (start + stop) / 2
    axis.text(middle, height + 0.09, layout, ha="center", va="bottom", fontsize=7, color=INK)


def _in_words(steps: Sequence[Step], title: str) -> str:
    head = f"{title}. " if title else ""
    there = "; ".join(f"{step.name} {_sent(step.there)}" for step in steps)
    back = "; ".join(f"{step.name} {_sent(step.back)}" for step in reversed(steps))
    return (
        f"{head}A program and its transpose, step by step. Forward, from left to right: {there}. "
        f"Backward, from right to left: {back}."
    )


def _sent(spans: Sequence[Span]) -> str:
    calls = [f"{span.op} of {span.payload:,} bytes" for span in spans]
    return f"sends {' and '.join(calls)}" if calls else NOTHING
