"""Wirings: the same layers joined in several ways, each beside the ledger of its own run.

A row is a wiring, a box one of its parts; above a box stand the collectives that its forward made,
below it those of its backward, with the elements that they send. Lesson 04 draws four MLPs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from course_lib.figures.colours import CARD, INK, PAPER, QUIET, Picture, draw, rank_look
from course_lib.figures.shapes import arrow, box, in_inches, label

WIDE, NARROW, HIGH, GAP = 1.5, 0.7, 0.5, 0.2  # boxes with and without a weight, in inches
TAG, ROW, NAME, SUM = 0.2, 0.24, 1.15, 1.35  # a tag's height, space in a row, the outer columns
ARROW = {"arrowstyle": "->", "color": QUIET, "linewidth": 0.9}


class Call(Protocol):
    """What a wiring needs to know of a collective; a ledger's records do."""

    op: str
    elements: int  # handed over
    payload: int  # the same in bytes
    must: float  # bytes that the rank has to send


class Part(NamedTuple):
    """One part of a wiring as it ran: which collectives were booked in it, in each direction."""

    name: str
    forward: Sequence[Call] = ()
    backward: Sequence[Call] = ()
    cut: str = ""  # how its weight is sharded, "columns" or "rows"; without a weight, nothing


def wirings(
    runs: Mapping[str, Sequence[Part]], *, ranks: int, rank: int = 0, title: str = ""
) -> Picture:
    """Draw each wiring with its parts in order; the records are those of `rank`, one of `ranks`."""
    width = NAME + max(map(_long, runs.values())) + SUM
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
        told = f"→ forward, ← backward; counts are elements that rank {rank} of {ranks} has to send"
        axis.text(0.05, top + 0.2, told, fontsize=8, color=INK, va="center")

    return draw(size, _in_words(runs, ranks, rank), paint, title)


def sent(calls: Sequence[Call]) -> float:
    """Elements that a rank has to send in these calls; whole wherever the formula is."""
    found = sum(call.must * call.elements / call.payload for call in calls if call.payload)
    return round(found) if abs(found - round(found)) < 1e-6 else found


def _row(axis, name: str, parts: Sequence[Part], middle: float, right: float, ranks: int) -> None:
    axis.text(0.05, middle, _folded(name), fontsize=8.5, fontweight="bold", color=INK, va="center")
    left = NAME
    for part in parts:
        arrow(axis, (left - GAP, middle), (left, middle), **ARROW)
        _box(axis, left, middle, part, ranks)
        centre = left + _wide(part) / 2
        for k, call in enumerate(reversed(part.forward)):
            _tag(axis, centre, middle - HIGH / 2 - TAG * (k + 0.6), "→", call, INK)
        for k, call in enumerate(part.backward):
            _tag(axis, centre, middle + HIGH / 2 + TAG * (k + 0.6), "←", call, CARD)
        left += _wide(part) + GAP
    arrow(axis, (left - GAP, middle), (right, middle), **ARROW)
    calls = [call for part in parts for call in (*part.forward, *part.backward)]
    for k, line in enumerate((_many(calls), f"{sent(calls):,} sent")):
        axis.text(
            right + 0.1, middle + 0.2 * (k - 0.5), line, fontsize=8.5, color=INK, va="center",
            fontweight="normal" if k else "bold",
        )  # fmt: skip


def _wide(part: Part) -> float:
    return WIDE if part.cut else NARROW


def _long(parts: Sequence[Part]) -> float:
    """All boxes of a wiring, each with the space after it."""
    return sum(_wide(part) + GAP for part in parts)


def _box(axis, left: float, middle: float, part: Part, ranks: int) -> None:
    look = {"facecolor": PAPER, "edgecolor": QUIET, "linewidth": 0.8, "zorder": 2}
    box(axis, left, middle - HIGH / 2, _wide(part), HIGH, **look)
    text = left + _wide(part) / 2
    if part.cut:  # the weight itself, a stripe of it for each rank
        side = HIGH - 0.16
        corner, text = (left + 0.08, middle - side / 2), left + side + 0.18
        for rank in range(ranks):
            step, look = side / ranks, {**rank_look(rank), "linewidth": 0.8, "zorder": 3}
            x, y = (rank * step, 0.0) if part.cut == "columns" else (0.0, rank * step)
            long = (step, side) if part.cut == "columns" else (side, step)
            box(axis, corner[0] + x, corner[1] + y, *long, **look)
    look = {"fontsize": 8.5, "ha": "left" if part.cut else "center", "zorder": 4}
    label(axis, text, middle, _folded(part.name), **look)


def _tag(axis, x: float, y: float, sign: str, call: Call, fill: str) -> None:
    """Dark for the forward, a frame for the backward; the arrow says it as well."""
    ink, frame = CARD if fill == INK else INK, {"facecolor": fill, "edgecolor": INK, "pad": 1.6}
    words = f"{sign} {call.op} {sent([call]):,}"
    label(axis, x, y, words, fontsize=7.5, color=ink, bbox={**frame, "linewidth": 0.7}, zorder=3)


def _folded(text: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, 12))


def _many(calls: Sequence[Call]) -> str:
    return f"{len(calls)} {'collective' if len(calls) == 1 else 'collectives'}"


def _in_words(runs: Mapping[str, Sequence[Part]], ranks: int, rank: int) -> str:
    told = []
    for name, parts in runs.items():
        said = []
        for part in parts:
            ways = [("forward", part.forward), ("backward", part.backward)]
            made = " and ".join(
                f"{way} {', '.join(f'{call.op} of {sent([call]):,}' for call in calls)}"
                for way, calls in ways
                if calls
            )
            cut = f" (weight sharded by {part.cut})" if part.cut else ""
            said.append(f"{part.name}{cut}: {made or 'no collective'}")
        calls = [call for part in parts for call in (*part.forward, *part.backward)]
        told.append(f"{name}. {'; '.join(said)}; in all {_many(calls)}, {sent(calls):,} sent.")
    return f"Elements that rank {rank} of {ranks} has to send. {' '.join(told)}"
