"""A timeline: one lane per rank, with a bar for each collective from its call to its completion.

The picture uses the spans of each rank's ledger. Ranks on one machine share a clock, so their lanes
can be compared. Lesson 01 draws a ring; lesson 09 draws messages hidden behind a backward pass.
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
    """Draw each rank's calls on a common time axis that starts at the first call.

    A thin dark line under a bar shows the time for which the call blocked the rank. For collectives
    in `together`, which all these ranks call in the same order, a bar is hollow until the last rank
    has called, because no data moves before then. If no call was completed, as in a ring of one
    rank, the picture says so.
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
    # Calls that may overlap in time are drawn below each other.
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
            waits, moves = "waits until every rank has called", "moves: every rank has called"
            looks = {waits: {"facecolor": CARD}, moves: {"facecolor": QUIET}}
            legend(figure, {name: {"edgecolor": QUIET, **look} for name, look in looks.items()})

    # Counts and order only, because times differ from run to run.
    told = []
    for number in range(len(ended)):
        counts = [f"{len(lane)} × {op}" for rank, op, lane in lanes if rank == number]
        told.append(f"rank {number}: {', '.join(counts)}")
    words = f"A lane for each rank, a bar from call to completion. {'; '.join(told)}."
    if ready:
        words += f" A bar of {', '.join(ready)} is hollow until every rank has called it."
    return draw((8.0, height), words, paint, title)


def ready_times(spans_by_rank: Sequence[Sequence[Span]], op: str) -> list[float]:
    """Return the time at which all ranks have made each call, because no data can move earlier."""
    starts = [[span.start for span in spans if span.op == op] for spans in spans_by_rank]
    counts = [len(one) for one in starts]
    if len(set(counts)) != 1 or not counts[0]:
        raise ValueError(
            f"the ranks made {counts} calls of {op}, but together= needs equal numbers"
        )
    return [max(calls) for calls in zip(*starts, strict=True)]


def tracks(bars: Sequence[tuple[float, float]]) -> list[int]:
    """Return a track for each bar: the first that is free at its start, so that no bars overlap."""
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
    """Draw a bar that is hollow until the last rank has called, and filled from then on."""
    ready = min(max(ready, span.start), span.end)
    for start, end, fill in ((span.start, ready, CARD), (ready, span.end, of_rank(rank))):
        if end > start:
            edge = of_rank(rank) if fill == CARD else CARD
            look = {"facecolor": fill, "edgecolor": edge, "linewidth": 0.8}
            left, long = (start - zero) * MILLI, (end - start) * MILLI
            axis.barh(y, long, left=left, height=high, **look)
