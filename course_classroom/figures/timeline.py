"""A timeline: one lane per rank, a bar for each collective from its call to its completion.

Drawn from the spans of each rank's ledger. Ranks on one machine share a clock, so the lanes can be
laid over one another. Lesson 01 draws a ring, lesson 09 hides messages under a backward.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from course_classroom.figures.colours import CARD, INK, QUIET, Picture, draw, of_rank, rank_look
from course_classroom.figures.shapes import legend

if TYPE_CHECKING:
    from course_lib.ledger.book import Span

MILLI = 1e3
LANE, LEGEND = 0.24, 0.3  # inches


def timeline(
    spans_by_rank: Sequence[Sequence[Span]], *, together: Collection[str] = (), title: str = ""
) -> Picture:
    """Draw each rank's calls over a common time, which starts at the first of them.

    A thin dark line under a bar is the time that the rank stood still and waited for it. Of the
    collectives in `together`, which all these ranks call in one order, a bar is hollow until the
    last rank has called: so long there is nothing to move. Without a completed call, as in a ring
    of one rank, the picture says so.
    """
    ended = [[span for span in spans if span.end is not None] for spans in spans_by_rank]
    if not any(ended):
        words = "No rank has completed a call. A group of one rank sends no messages."
        return draw((8.0, 0.6), words, lambda figure: figure.text(0.02, 0.3, words), title)
    zero = min(span.start for spans in ended for span in spans)
    last = max(span.end for spans in ended for span in spans)
    ops = dict.fromkeys(span.op for spans in ended for span in spans)
    ready = {op: ready_times(ended, op) for op in together}
    lanes = [
        (rank, op, lane)
        for rank, spans in enumerate(ended)
        for op in ops
        if (lane := [span for span in spans if span.op == op])
    ]
    # Where calls may be under way at one time, they are drawn below each other.
    places = [
        tracks([(s.start, s.end) for s in lane]) if op in ready else [0] for _, op, lane in lanes
    ]
    highs = [1 + 0.3 * max(of_lane) for of_lane in places]
    height = 0.7 + LANE * sum(highs) + 0.15 * len(ended) + LEGEND * bool(ready)

    def paint(figure) -> None:
        axis, row, ticks, before = figure.subplots(), 0.0, [], 0
        for (rank, op, lane), of_lane, high in zip(lanes, places, highs, strict=True):
            row, before = row + 0.6 * (rank - before), rank
            ticks.append(row + (high - 1) / 2)
            if op in ready:
                each = (high - 0.3) / (max(of_lane) + 1)
                for span, moves, place in zip(lane, ready[op], of_lane, strict=True):
                    y = row - 0.35 + each * (place + 0.5)
                    _split(axis, span, moves, y, 0.86 * each, zero, rank)
            else:
                for span in lane:
                    _bar(axis, span, row, zero, rank)
            row += high
        axis.set_yticks(ticks, [f"rank {rank}  {op}" for rank, op, _ in lanes])
        long = (last - zero) * MILLI
        axis.set(ylim=(row, -0.8), xlim=(-0.02 * long, 1.02 * long))
        axis.set_xlabel("milliseconds since the first call")
        axis.tick_params(axis="y", length=0, labelcolor=INK)
        axis.spines["left"].set_visible(False)
        axis.grid(axis="x")
        axis.set_axisbelow(True)
        if ready:
            waits, moves = "waits until every rank has called", "every rank has called: it moves"
            looks = {waits: {"facecolor": CARD}, moves: {"facecolor": QUIET}}
            legend(figure, {name: {"edgecolor": QUIET, **look} for name, look in looks.items()})

    # Counts and order only: times differ from run to run, what happens does not.
    told = []
    for number in range(len(ended)):
        counts = [f"{len(lane)} × {op}" for rank, op, lane in lanes if rank == number]
        told.append(f"rank {number}: {', '.join(counts)}")
    words = f"A lane for each rank, a bar from call to completion. {'; '.join(told)}."
    if ready:
        words += f" A bar of {', '.join(ready)} is hollow until every rank has called it."
    return draw((8.0, height), words, paint, title)


def ready_times(spans_by_rank: Sequence[Sequence[Span]], op: str) -> list[float]:
    """When each call of a collective has been made by all ranks: only then it can move anything."""
    starts = [[span.start for span in spans if span.op == op] for spans in spans_by_rank]
    counts = [len(one) for one in starts]
    if len(set(counts)) != 1 or not counts[0]:
        raise ValueError(
            f"the ranks made {counts} calls of {op}: together= is for what all of them call"
        )
    return [max(calls) for calls in zip(*starts, strict=True)]


def tracks(bars: Sequence[tuple[float, float]]) -> list[int]:
    """A track for each bar, the first that is free when it begins, so that none covers another."""
    free: list[float] = []
    found = []
    for begin, end in bars:
        place = next((i for i, until in enumerate(free) if until <= begin), len(free))
        free[place : place + 1] = [end]
        found.append(place)
    return found


def _bar(axis, span: Span, row: float, zero: float, rank: int) -> None:
    left, long = (span.start - zero) * MILLI, (span.end - span.start) * MILLI
    axis.barh(row, long, left=left, height=0.62, **{**rank_look(rank), "linewidth": 0.6})
    for start, end in span.waits:
        times = [(start - zero) * MILLI, (end - zero) * MILLI]
        axis.plot(times, [row + 0.42] * 2, color=INK, linewidth=1.6, solid_capstyle="butt")


def _split(axis, span: Span, ready: float, y: float, high: float, zero: float, rank: int) -> None:
    """Hollow until the last rank has called, filled from then on."""
    ready = min(max(ready, span.start), span.end)
    for start, end, fill in ((span.start, ready, CARD), (ready, span.end, of_rank(rank))):
        if end > start:
            edge = of_rank(rank) if fill == CARD else CARD
            look = {"facecolor": fill, "edgecolor": edge, "linewidth": 0.8}
            left, long = (start - zero) * MILLI, (end - start) * MILLI
            axis.barh(y, long, left=left, height=high, **look)
