"""A timeline: one lane per rank, a bar for each collective from its call to its completion.

Drawn from the spans of each rank's ledger. Ranks on one machine share a clock, so the lanes can be
laid over one another. Lesson 01 draws a ring, lesson 09 hides messages under a backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from course_lib.figures.colours import INK, QUIET, Picture, draw, hatch_of_rank, of_rank

MILLI = 1e3


class Span(Protocol):
    """What a timeline needs to know of a call; a ledger's spans do."""

    op: str
    start: float
    end: float | None
    waits: tuple[tuple[float, float], ...]


def timeline(spans_by_rank: Sequence[Sequence[Span]], *, title: str = "") -> Picture:
    """Draw each rank's calls over a common time, which starts at the first of them.

    A thin dark line under a bar is the time that the rank stood still and waited for it.
    """
    ended = [[span for span in spans if span.end is not None] for spans in spans_by_rank]
    if not any(ended):
        raise ValueError("no rank has a call that was completed: there is nothing to draw")
    zero = min(span.start for spans in ended for span in spans)
    last = max(span.end for spans in ended for span in spans)
    ops = list(dict.fromkeys(span.op for spans in ended for span in spans))
    alt = _in_words(ended, ops, title)
    height = 0.9 + 0.24 * sum(_rows(spans, ops) for spans in ended) + 0.15 * len(ended)

    def paint(figure) -> None:
        axis = figure.subplots()
        row, ticks, names = 0.0, [], []
        for rank, spans in enumerate(ended):
            for op in ops:
                if not any(span.op == op for span in spans):
                    continue
                ticks.append(row)
                names.append(f"rank {rank}  {op}")
                for span in spans:
                    if span.op == op:
                        _bar(axis, span, row, zero, rank)
                row += 1
            row += 0.6
        axis.set_yticks(ticks, names)
        axis.set_ylim(row - 0.6, -0.8)
        axis.set_xlim(-0.02 * (last - zero) * MILLI, (last - zero) * 1.02 * MILLI)
        axis.set_xlabel("milliseconds since the first call")
        axis.set_title(title, fontsize=10, color=INK)
        axis.tick_params(axis="y", length=0, labelcolor=INK)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
        axis.grid(axis="x", color=QUIET, alpha=0.25, linewidth=0.5)
        axis.set_axisbelow(True)

    return draw((8.0, height), alt, paint)


def _bar(axis, span: Span, row: float, zero: float, rank: int) -> None:
    left, long = (span.start - zero) * MILLI, (span.end - span.start) * MILLI
    axis.barh(
        row, long, left=left, height=0.62, color=of_rank(rank), hatch=hatch_of_rank(rank),
        edgecolor="#ffffff", linewidth=0.6,
    )  # fmt: skip
    for start, end in span.waits:
        times = [(start - zero) * MILLI, (end - zero) * MILLI]
        axis.plot(times, [row + 0.42] * 2, color=INK, linewidth=1.6, solid_capstyle="butt")


def _rows(spans: Sequence[Span], ops: list[str]) -> int:
    return sum(any(span.op == op for span in spans) for op in ops)


def _in_words(ended: list[list[Span]], ops: list[str], title: str) -> str:
    """Counts and order only: times differ from run to run, what happens does not."""
    lanes = []
    for rank, spans in enumerate(ended):
        counts = [(op, sum(span.op == op for span in spans)) for op in ops]
        lanes.append(f"rank {rank}: " + ", ".join(f"{k} × {op}" for op, k in counts if k))
    head = f"{title}. " if title else ""
    return f"{head}A lane for each rank, a bar from call to completion. {'; '.join(lanes)}."
