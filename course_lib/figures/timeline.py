"""A timeline: one lane per rank, a bar for each collective from its call to its completion.

Drawn from the spans of each rank's ledger. Ranks on one machine share a clock, so the lanes can be
laid over one another. Lesson 01 draws a ring, lesson 09 hides messages under a backward.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from course_lib.figures.colours import CARD, INK, QUIET, Picture, draw, of_rank, rank_look
from course_lib.figures.shapes import legend

MILLI = 1e3
LANE, LEGEND = 0.24, 0.3  # inches


class Span(Protocol):
    """What a timeline needs to know of a call; a ledger's spans do."""

    op: str
    start: float
    end: float | None
    waits: tuple[tuple[float, float], ...]


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
        return _nothing(title)
    zero = min(span.start for spans in ended for span in spans)
    last = max(span.end for spans in ended for span in spans)
    ops = list(dict.fromkeys(span.op for spans in ended for span in spans))
    ready = {op: ready_times(ended, op) for op in together}
    alt = _in_words(ended, ops, list(ready))
    rows = [_high(spans, op, ready) for spans in ended for op in ops]
    height = 0.7 + LANE * sum(rows) + 0.15 * len(ended)

    def paint(figure) -> None:
        axis = figure.subplots()
        row, ticks, names = 0.0, [], []
        for rank, spans in enumerate(ended):
            for op in ops:
                lane = [span for span in spans if span.op == op]
                if not lane:
                    continue
                high = _high(spans, op, ready)
                ticks.append(row + (high - 1) / 2)
                names.append(f"rank {rank}  {op}")
                places = _places(lane)
                for i, span in enumerate(lane):
                    if op in ready:
                        each = (high - 0.3) / (max(places) + 1)
                        y = row - 0.35 + each * (places[i] + 0.5)
                        _split(axis, span, ready[op][i], y, 0.86 * each, zero, rank)
                    else:
                        _bar(axis, span, row, zero, rank)
                row += high
            row += 0.6
        axis.set_yticks(ticks, names)
        axis.set_ylim(row - 0.6, -0.8)
        axis.set_xlim(-0.02 * (last - zero) * MILLI, (last - zero) * 1.02 * MILLI)
        axis.set_xlabel("milliseconds since the first call")
        axis.tick_params(axis="y", length=0, labelcolor=INK)
        axis.spines["left"].set_visible(False)
        axis.grid(axis="x", color=QUIET, alpha=0.25, linewidth=0.5)
        axis.set_axisbelow(True)
        if ready:
            waits, moves = "waits until every rank has called", "every rank has called: it moves"
            looks = {waits: {"facecolor": CARD}, moves: {"facecolor": QUIET}}
            legend(figure, {name: {"edgecolor": QUIET, **look} for name, look in looks.items()})

    return draw((8.0, height + (LEGEND if ready else 0.0)), alt, paint, title)


def _nothing(title: str) -> Picture:
    words = "No rank has completed a call. A group of one rank sends no messages."
    return draw((8.0, 0.6), words, lambda figure: figure.text(0.02, 0.3, words), title)


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
            axis.barh(y, (end - start) * MILLI, left=(start - zero) * MILLI, height=high,
                      facecolor=fill, edgecolor=edge, linewidth=0.8)  # fmt: skip


def _places(lane: Sequence[Span]) -> list[int]:
    return tracks([(span.start, span.end) for span in lane])


def _high(spans: Sequence[Span], op: str, ready: Collection[str]) -> float:
    """Of a lane, in rows: more where calls under way at one time are drawn below each other."""
    lane = [span for span in spans if span.op == op]
    if not lane or op not in ready:
        return float(bool(lane))
    return 1 + 0.3 * max(_places(lane))


def _in_words(ended: list[list[Span]], ops: list[str], together: list[str]) -> str:
    """Counts and order only: times differ from run to run, what happens does not."""
    lanes = []
    for rank, spans in enumerate(ended):
        counts = [(op, sum(span.op == op for span in spans)) for op in ops]
        lanes.append(f"rank {rank}: " + ", ".join(f"{k} × {op}" for op, k in counts if k))
    told = f"A lane for each rank, a bar from call to completion. {'; '.join(lanes)}."
    if together:
        told += f" A bar of {', '.join(together)} is hollow until every rank has called it."
    return told
