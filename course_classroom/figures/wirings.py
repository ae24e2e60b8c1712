"""Wirings: the same layers joined in several ways, each with the ledger of its run.

A row is a wiring, and a box is one of its parts. Forward collectives are above the box and backward
collectives below it, each with the elements sent. Lesson 04 draws four MLPs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

from course_classroom.figures.colours import CARD, INK, PAPER, QUIET, Picture, draw
from course_classroom.figures.shapes import arrow, box, in_inches, label, stripe

if TYPE_CHECKING:
    from course_lib.ledger.book import Record

WIDE, NARROW, HIGH, GAP = 1.5, 0.7, 0.5, 0.2  # boxes with and without a weight, in inches
TAG, ROW, NAME, SUM = 0.2, 0.24, 1.15, 1.35  # a tag's height, space in a row, the outer columns
ARROW = {"arrowstyle": "->", "color": QUIET, "linewidth": 0.9}


class Part(NamedTuple):
    """A part of a wiring as it ran, with the collectives booked in each direction."""

    name: str
    forward: Sequence[Record] = ()
    backward: Sequence[Record] = ()
    cut: str = ""  # how its weight is sharded, "columns" or "rows"; "" without a weight


def wirings(runs: Mapping[str, Sequence[Part]], *, ranks: int, title: str = "") -> Picture:
    """Draw each wiring with its parts in order; the records come from rank 0 of `ranks`."""
    width = NAME + max(sum(_wide(part) + GAP for part in parts) for parts in runs.values()) + SUM
    above = {name: max(len(part.forward) for part in parts) for name, parts in runs.items()}
    below = {name: max(len(part.backward) for part in parts) for name, parts in runs.items()}
    heights = {name: ROW + HIGH + TAG * (above[name] + below[name]) for name in runs}
    size = (width, sum(heights.values()) + 0.5)

    def paint(figure) -> None:
        axis = in_inches(figure)
        top = 0.1
        for name, parts in runs.items():
            middle = top + ROW / 2 + TAG * above[name] + HIGH / 2
            _row(axis, name, parts, middle, width - SUM, ranks)
            top += heights[name]
            if name != list(runs)[-1]:
                axis.plot([0, width], [top, top], color=QUIET, alpha=0.35, linewidth=0.6)
        told = f"→ forward, ← backward; counts are elements that rank 0 of {ranks} must send"
        axis.text(0.05, top + 0.2, told, fontsize=8, color=INK, va="center")

    return draw(size, _in_words(runs, ranks), paint, title)


def sent(calls: Sequence[Record]) -> float:
    """Return the elements that a rank must send in these calls, rounded if nearly integral."""
    found = sum(call.must * call.elements / call.payload for call in calls if call.payload)
    return round(found) if abs(found - round(found)) < 1e-6 else found


def _row(axis, name: str, parts: Sequence[Part], middle: float, right: float, ranks: int) -> None:
    axis.text(0.05, middle, fill(name, 12), fontsize=8.5, fontweight="bold", color=INK, va="center")
    left = NAME
    for part in parts:
        arrow(axis, (left - GAP, middle), (left, middle), **ARROW)
        _box(axis, left, middle, part, ranks)
        centre = left + _wide(part) / 2
        for k, call in enumerate(reversed(part.forward)):
            _tag(axis, centre, middle - HIGH / 2 - TAG * (k + 0.6), f"→ {_moves(call)}", INK, CARD)
        for k, call in enumerate(part.backward):
            _tag(axis, centre, middle + HIGH / 2 + TAG * (k + 0.6), f"← {_moves(call)}", CARD, INK)
        left += _wide(part) + GAP
    arrow(axis, (left - GAP, middle), (right, middle), **ARROW)
    many, total = _in_all(parts)
    look = {"ha": "left", "fontsize": 8.5}
    label(axis, right + 0.1, middle - 0.1, many, fontweight="bold", **look)
    label(axis, right + 0.1, middle + 0.1, total, **look)


def _wide(part: Part) -> float:
    return WIDE if part.cut else NARROW


def _box(axis, left: float, middle: float, part: Part, ranks: int) -> None:
    look = {"facecolor": PAPER, "edgecolor": QUIET, "linewidth": 0.8, "zorder": 2}
    box(axis, left, middle - HIGH / 2, _wide(part), HIGH, **look)
    text = left + _wide(part) / 2
    if part.cut:  # the weight, with a stripe for each rank
        side = HIGH - 0.16
        corner, text = (left + 0.08, middle - side / 2), left + side + 0.18
        for rank in range(ranks):
            stripe(axis, *corner, side, part.cut, rank, ranks, linewidth=0.8, zorder=3)
    look = {"fontsize": 8.5, "ha": "left" if part.cut else "center", "zorder": 4}
    label(axis, text, middle, fill(part.name, 12), **look)


def _tag(axis, x: float, y: float, words: str, paper: str, ink: str) -> None:
    """Draw a tag, dark for the forward pass and framed for the backward pass."""
    frame = {"facecolor": paper, "edgecolor": INK, "pad": 1.6, "linewidth": 0.7}
    label(axis, x, y, words, fontsize=7.5, color=ink, bbox=frame, zorder=3)


def _moves(call: Record) -> str:
    return f"{call.op} {sent([call]):,}"


def _in_all(parts: Sequence[Part]) -> tuple[str, str]:
    calls = [call for part in parts for call in (*part.forward, *part.backward)]
    noun = "collective" if len(calls) == 1 else "collectives"
    return f"{len(calls)} {noun}", f"{sent(calls):,} sent"


def _in_words(runs: Mapping[str, Sequence[Part]], ranks: int) -> str:
    told = []
    for name, parts in runs.items():
        said = []
        for part in parts:
            ways = {"forward": part.forward, "backward": part.backward}
            made = " and ".join(
                f"{way} {', '.join(f'{call.op} of {sent([call]):,}' for call in calls)}"
                for way, calls in ways.items()
                if calls
            )
            cut = f" (weight sharded by {part.cut})" if part.cut else ""
            said.append(f"{part.name}{cut}: {made or 'no collective'}")
        told.append(f"{name}. {'; '.join(said)}; in total {', '.join(_in_all(parts))}.")
    return f"Elements that rank 0 of {ranks} must send. {' '.join(told)}"
