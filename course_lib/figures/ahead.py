"""Gathers beside the work that they are for: lanes of messages and a lane of one rank's own time.

Drawn from a ledger's spans. Where the rank stands still, it waits for a message. Lesson 11 draws a
step at stage 3 with 0, 1 and 2 units asked for ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from course_lib.figures.colours import INK, QUIET, Picture, draw, hatch_of_method, method
from course_lib.figures.timeline import MILLI, Span

# All of it is one rank: operations have the colours of methods.
OPS = {"all_gather": (method(1), hatch_of_method(1)), "reduce_scatter": (method(3), "")}
WORK, STILL = method(0), "#f2f2f2"
ROWS = {"all_gather": 2, "reduce_scatter": 1}
PANEL = 1.15  # inches


def ahead(runs: Mapping[str, Sequence[Span]], *, title: str = "") -> Picture:
    """Draw one rank's gathers and reduce-scatters in each run, and when it works or waits."""
    kept = {name: [s for s in spans if s.op in OPS and s.end] for name, spans in runs.items()}
    if not kept or not all(kept.values()):
        raise ValueError("each run needs a gather or a reduce-scatter that was completed")
    longest = max(spans[-1].end - spans[0].start for spans in map(_sorted, kept.values()))

    def paint(figure) -> None:
        panels = figure.subplots(len(kept), 1, sharex=True, squeeze=False)[:, 0]
        for panel, (name, spans) in zip(panels, kept.items(), strict=True):
            _panel(panel, name, _sorted(spans))
        panels[0].set_xlim(-0.01 * longest * MILLI, 1.01 * longest * MILLI)
        panels[-1].set_xlabel("milliseconds since the first gather")
        if title:
            figure.suptitle(title, fontsize=10, color=INK)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False,
                      fontsize=8)  # fmt: skip

    return draw((8.0, PANEL * len(kept) + 0.9), _in_words(kept, title), paint)


def _sorted(spans: Sequence[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: span.start)


def _panel(axis, name: str, spans: list[Span]) -> None:
    zero, seen = spans[0].start, set()
    last = max(span.end for span in spans)
    work = {"height": 0.55, "color": WORK, "linewidth": 0, "label": "works"}
    axis.barh(0, (last - zero) * MILLI, **work)
    for span in spans:
        for begin, end in span.waits:
            look = {"height": 0.57, "color": STILL, "edgecolor": QUIET, "linewidth": 0.5}
            mark = {} if "still" in seen else {"label": "stands still"}
            seen.add("still")
            axis.barh(0, (end - begin) * MILLI, left=(begin - zero) * MILLI, **look, **mark)
        shade, hatch = OPS[span.op]
        mark = {} if span.op in seen else {"label": span.op}
        seen.add(span.op)
        wide, left = (span.end - span.start) * MILLI, (span.start - zero) * MILLI
        axis.barh(ROWS[span.op], wide, left=left, height=0.55, color=shade, hatch=hatch,
                  edgecolor=INK, linewidth=0.5, alpha=0.85, **mark)  # fmt: skip
    axis.set_yticks([0, 1, 2], ["this rank", "scatters", "gathers"])
    axis.set_ylim(-0.45, 2.45)
    axis.set_title(name, fontsize=9, loc="left", color=INK)
    axis.tick_params(axis="y", length=0, labelcolor=INK)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def begun_before(spans: Sequence[Span]) -> int:
    """How many gathers were asked for before the rank waited for the gather before them."""
    gathers = _sorted([span for span in spans if span.op == "all_gather"])
    return sum(
        bool(before.waits) and after.start < before.waits[0][0]
        for before, after in pairwise(gathers)
    )


def _in_words(runs: Mapping[str, Sequence[Span]], title: str) -> str:
    """Counts and order only: times differ from run to run, what happens does not."""
    told = []
    for name, spans in runs.items():
        counts = ", ".join(f"{sum(s.op == op for s in spans)} × {op}" for op in OPS)
        early = begun_before(spans)
        told.append(
            f"{name}: {counts}; {early} gathers begin before the rank waits for the one before."
        )
    head = f"{title}. " if title else ""
    return f"{head}One rank's messages, and when it works or stands still. {' '.join(told)}"
