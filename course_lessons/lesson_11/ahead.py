"""Gathers and the work that needs them: one rank's messages, in the order of its calls.

A column is a unit's turn, not a measure of time, because the order of calls and waits decides which
messages overlap with work. Lesson 11 draws a step at stage 3 with 0, 1 and 2 units of prefetch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from course_classroom.figures.colours import (
    CARD,
    INK,
    QUIET,
    Picture,
    draw,
    in_words,
    ink_on,
    method,
)
from course_classroom.figures.shapes import label, legend
from course_classroom.figures.timeline import tracks

if TYPE_CHECKING:
    from course_lib.ledger.book import Span

# All of it is one rank, so operations have the colours of methods.
OPS = {"all_gather": (method(1), ""), "reduce_scatter": (method(3), "|||")}
WORK = {"forward": method(2), "backward": method(0)}
STILL, NARROW = 0.55, 0.14  # width of a turn's wait for its gather, if it waits and if not
SCATTERS_AT = 0.82  # fraction of a turn after which its gradients exist
PANEL = 1.12  # inches


class Turn(NamedTuple):
    """A unit's turn: its gather started `ahead` turns earlier, and the rank waits for it now."""

    unit: int  # counted in the forward's order, from 1
    phase: str
    ahead: int


def ahead(runs: Mapping[str, Sequence[Span]], *, title: str = "") -> Picture:
    """Draw one rank's gathers and reduce-scatters in each run, by turn."""
    kept = {name: [s for s in spans if s.op in OPS and s.end] for name, spans in runs.items()}

    def paint(figure) -> None:
        panels = figure.subplots(len(kept), 1, sharex=True, squeeze=False)[:, 0]
        ends = [_panel(panel, name, kept[name]) for panel, name in zip(panels, kept, strict=True)]
        panels[0].set_xlim(-0.1, max(ends))
        panels[-1].set_xlabel("order of this rank's actions, not a measure of time")
        looks = {f"a unit's {phase}": {"facecolor": shade} for phase, shade in WORK.items()}
        looks["waits for its gather"] = {"facecolor": CARD, "edgecolor": QUIET, "linestyle": ":"}
        for op, (shade, hatch) in OPS.items():
            looks[op] = {"facecolor": shade, "hatch": hatch, "edgecolor": CARD}
        legend(figure, looks)

    # Counts and order only, because times differ from run to run.
    words = {
        name: (
            ", ".join(f"{sum(s.op == op for s in spans)} × {op}" for op in OPS),
            f"{begun_before(spans)} gathers begin before the rank waits for the previous one",
        )
        for name, spans in kept.items()
    }
    alt = in_words("One rank's messages, by the units' turns", words, between="; ")
    return draw((8.6, PANEL * len(kept) + 1.0), alt, paint, title)


def turns(spans: Sequence[Span]) -> list[Turn]:
    """Return the units' turns in order: a turn begins when the rank waits for a gather."""
    gathers = _by_use(spans)
    uses = [_use(span) for span in gathers]
    forward = sum(span.phase == "forward" for span in gathers)
    found = []
    for place, span in enumerate(gathers):
        # The last unit stays gathered, so the backward's first gather is of the unit before.
        unit = place + 1 if place < forward else 2 * forward - 1 - place
        found.append(Turn(unit, span.phase, place - bisect_right(uses, span.start)))
    return found


def _use(span: Span) -> float:
    """Return the time at which the rank needs this message's data."""
    return span.waits[0][0] if span.waits else span.end


def _by_use(spans: Sequence[Span]) -> list[Span]:
    return sorted((span for span in spans if span.op == "all_gather"), key=_use)


def begun_before(spans: Sequence[Span]) -> int:
    """Count the gathers that started before the rank waited for the previous gather."""
    gathers = sorted((s for s in spans if s.op == "all_gather"), key=lambda span: span.start)
    return sum(
        bool(before.waits) and after.start < before.waits[0][0]
        for before, after in pairwise(gathers)
    )


def _panel(axis, name: str, spans: Sequence[Span]) -> float:
    """Draw one run on an axis; return the position of its end, in turns."""
    found, uses, starts, x = turns(spans), [_use(span) for span in _by_use(spans)], [], 0.0
    for turn in found:
        starts.append(x + (NARROW if turn.ahead > 0 else STILL))
        x = starts[-1] + 1
    gathers, scatters = [], []
    for place, (turn, start) in enumerate(zip(found, starts, strict=True)):
        shade = WORK.get(turn.phase, WORK["forward"])
        axis.barh(0, 0.96, left=start, height=0.66, color=shade, linewidth=0)
        label(axis, start + 0.48, -0.02, turn.unit, fontsize=6.5, color=ink_on(shade))
        if turn.ahead > 0:
            gathers.append((starts[place - turn.ahead], start - 0.04))
        else:
            gathers.append((start - STILL + 0.04, start))
            look = {"facecolor": CARD, "edgecolor": QUIET, "linewidth": 0.7, "linestyle": ":"}
            axis.barh(0, STILL - 0.08, left=start - STILL + 0.04, height=0.66, **look)
    for span in spans:
        if span.op == "reduce_scatter":
            asked, waited = (max(0, bisect_right(uses, t) - 1) for t in (span.start, _use(span)))
            begin = starts[asked] + SCATTERS_AT
            scatters.append((begin, max(begin + 0.5, starts[waited] + SCATTERS_AT)))
    for (shade, hatch), row, bars in zip(
        OPS.values(), (2.0, 1.0), (gathers, scatters), strict=True
    ):
        places = tracks(bars)
        high = 0.74 / (max(places, default=0) + 1)
        look = {"color": shade, "hatch": hatch, "edgecolor": CARD, "linewidth": 0.3}
        for (begin, end), place in zip(bars, places, strict=True):
            y = row - 0.37 + high * (place + 0.5)
            axis.barh(y, end - begin, left=begin, height=0.86 * high, **look)
    hidden = sum(turn.ahead > 0 for turn in found)
    said = f"{name}: {hidden} of {len(found)} gathers are in progress while the rank works"
    axis.set_title(said, loc="left")
    axis.set_yticks([0, 1, 2], ["this rank", "scatters", "gathers"], fontsize=8)
    axis.set(ylim=(-0.45, 2.5), xticks=[])
    axis.tick_params(axis="y", length=0, labelcolor=INK)
    axis.spines[:].set_visible(False)
    return starts[-1] + 2
