"""Memory over time: what a step takes above what is held between steps, and the part of it that is
gathered parameters. A panel for each way of running the step, all on one scale.

`whole_units` notes what an engine of stage 3 has whole, at each coming and going. Lesson 11 draws a
step with units of three sizes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from course_lib.figures.colours import INK, QUIET, Picture, draw, method

if TYPE_CHECKING:
    from course_lib.zero import Engine

MEGA = 1e6
SHADE, LINE = method(3), method(0)
PANEL = 1.25  # inches


class Moment(NamedTuple):
    """From here on `nbytes` of gathered parameters are in memory."""

    seconds: float
    nbytes: int
    what: str  # "come" or "go", and the unit


@dataclass
class Run:
    """A step as it is drawn: the meter's points, those of the units, and what a formula says."""

    memory: Sequence[tuple[float, int, str]]
    whole: Sequence[tuple[float, int, str]]
    limit: int  # bytes of parameters whole at once, by the formula
    peak: int = field(init=False)

    def __post_init__(self) -> None:
        self.peak = max((point[1] for point in self.memory), default=0)


@contextmanager
def whole_units(engine: Engine) -> Iterator[list[Moment]]:
    """Note what is whole, in bytes of the units' buffers, whenever one comes or goes."""
    units, zero, moments = engine.shards.units, time.perf_counter(), []

    def note(what: str) -> None:
        now = sum(unit.buffer.untyped_storage().nbytes() for unit in units)
        if not moments or moments[-1].nbytes != now:
            moments.append(Moment(time.perf_counter() - zero, now, what))

    def noting(unit, method: str, word: str):
        inner = getattr(unit, method)

        def call() -> None:
            inner()
            note(f"{word} {unit.name}")

        return call

    note("begin")
    before = [dict(vars(unit)) for unit in units]
    for unit in units:
        # On the object, so that the unit's own calls come this way too.
        unit.start, unit.free = noting(unit, "start", "come"), noting(unit, "free", "go")
    try:
        yield moments
    finally:
        for unit, kept in zip(units, before, strict=True):
            for method in ("start", "free"):
                delattr(unit, method)
                if method in kept:  # somebody else's, from before
                    setattr(unit, method, kept[method])


def memory_line(runs: Mapping[str, Run], *, title: str = "") -> Picture:
    """Draw each run's memory above what is held between steps, over the time of its step."""
    if not runs or not all(run.memory and run.whole for run in runs.values()):
        raise ValueError("each run needs the meter's points and those of its units")
    most = max(run.peak for run in runs.values()) / MEGA

    def paint(figure) -> None:
        panels = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for panel, (name, run) in zip(panels, runs.items(), strict=True):
            _panel(panel, name, run)
        panels[0].set_ylim(0, 1.12 * most)
        panels[0].set_xlim(0, 1)
        panels[-1].set_xlabel("part of the step")
        figure.supylabel("MB above what is held between steps", fontsize=9, color=INK)
        if title:
            figure.suptitle(title, fontsize=10, color=INK)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False,
                      fontsize=8)  # fmt: skip

    return draw((7.6, PANEL * len(runs) + 0.9), _in_words(runs, title), paint)


def _panel(axis, name: str, run: Run) -> None:
    end = max(run.memory[-1][0], run.whole[-1][0])
    times, held = _stairs(run.memory, end)
    axis.plot(times, held, color=LINE, linewidth=1.0, drawstyle="steps-post", label="all tensors")
    times, whole = _stairs(run.whole, end)
    look = {"facecolor": SHADE, "edgecolor": QUIET, "linewidth": 0.4}
    axis.fill_between(times, whole, step="post", label="gathered parameters", **look)
    limit = run.limit / MEGA
    axis.axhline(limit, color=INK, linestyle="--", linewidth=1.1, label="the formula for these")
    axis.text(0.995, limit, f"{limit:.2f}", ha="right", va="bottom", fontsize=8, color=INK)
    axis.set_title(name, fontsize=9, loc="left", color=INK)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _stairs(points: Sequence[tuple[float, int, str]], end: float) -> tuple[list, list]:
    """Parts of the step and megabytes, up to its end."""
    times = [point[0] / end for point in points] + [1.0]
    levels = [max(0, point[1]) / MEGA for point in points]
    return times, [*levels, levels[-1]]


def _in_words(runs: Mapping[str, Run], title: str) -> str:
    told = [
        f"{name}: at most {max(point[1] for point in run.whole) / MEGA:.2f} MB of gathered "
        f"parameters, by the formula {run.limit / MEGA:.2f}, in {_heights(run.whole)} hills; all "
        f"tensors together reach {run.peak / MEGA:.1f} MB."
        for name, run in runs.items()
    ]
    head = f"{title}. " if title else ""
    return f"{head}Memory over the time of a step, above what is held between. {' '.join(told)}"


def _heights(points: Sequence[tuple[float, int, str]]) -> int:
    """How often parameters come and go: the line's ways up that end in a way down."""
    levels = [point[1] for point in points]
    return sum(
        before < now and (after is None or after < now)
        for before, now, after in zip([0, *levels], levels, [*levels[1:], None], strict=False)
    )
