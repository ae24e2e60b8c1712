"""Memory over time: what a step takes above what is held between steps, and the part of it that is
gathered parameters. A row for each way of running the step: left all tensors, on one scale for all
rows; right the gathered parameters, each on a scale of its own.

`whole_units` notes what an engine of stage 3 has gathered, at each coming and going, and when each
phase of the step begins. Lesson 11 draws a step with units of three sizes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from course_lib.figures.colours import INK, QUIET, Picture, draw, method
from course_lib.figures.shapes import legend

if TYPE_CHECKING:
    from course_lib.zero import Engine

MEGA = 1e6
SHADE, LINE = method(1), method(0)
PHASES = {"forward": "#ffffff", "backward": "#e9eaec", "step": "#d3d5d8"}
PHASE = "phase "  # begins the note of a phase
PANEL = 1.2  # inches


class Moment(NamedTuple):
    """From here on `nbytes` of gathered parameters are in memory."""

    seconds: float
    nbytes: int
    what: str  # "come" or "go", and the unit; or "phase", and which begins


@dataclass
class Run:
    """A step as it is drawn: the meter's points, those of the units, and what a formula says."""

    memory: Sequence[tuple[float, int, str]]
    whole: Sequence[tuple[float, int, str]]
    limit: int  # bytes of parameters whole at once, by the formula: the largest unit
    shard: int | None = None  # bytes of parameters that stay between steps
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

    def phase(method: str, word: str):
        inner = getattr(engine, method)

        def call(*args, **more):
            moments.append(Moment(time.perf_counter() - zero, moments[-1].nbytes, PHASE + word))
            try:
                return inner(*args, **more)
            finally:
                seconds = time.perf_counter() - zero
                moments.append(Moment(seconds, moments[-1].nbytes, f"{PHASE}forward"))

        return call

    note("begin")
    phased = {name: vars(engine).get(name) for name in ("backward", "step")}
    engine.backward, engine.step = phase("backward", "backward"), phase("step", "step")
    before = [dict(vars(unit)) for unit in units]
    for unit in units:
        # On the object, so that the unit's own calls come this way too.
        unit.start, unit.free = noting(unit, "start", "come"), noting(unit, "free", "go")
    try:
        yield moments
    finally:
        for name, own in phased.items():
            delattr(engine, name)
            if own is not None:
                setattr(engine, name, own)
        for unit, kept in zip(units, before, strict=True):
            for method in ("start", "free"):
                delattr(unit, method)
                if method in kept:  # somebody else's, from before
                    setattr(unit, method, kept[method])


def memory_line(runs: Mapping[str, Run], *, title: str = "") -> Picture:
    """Draw each run's memory above what is held between steps, over the time of its step."""
    most = max(run.peak for run in runs.values()) / MEGA

    def paint(figure) -> None:
        rows = figure.subplots(len(runs), 2, sharex=True, squeeze=False, width_ratios=(1, 1))
        for (left, right), (name, run) in zip(rows, runs.items(), strict=True):
            end = max(run.memory[-1][0], run.whole[-1][0])
            for axis in (left, right):
                _phases(axis, run.whole, end)
            _all_tensors(left, name, run, end)
            left.set_ylim(0, 1.12 * most)
            _gathered(right, run, end)
        rows[0, 0].set_xlim(0, 1)
        for axis in rows[-1]:
            axis.set_xlabel("part of the step")
        figure.supylabel("MB above what is held between steps", fontsize=9)
        _legend(figure)

    return draw((8.4, PANEL * len(runs) + 1.0), _in_words(runs), paint, title)


def phases(
    points: Sequence[tuple[float, int, str]], end: float, least: float = 0.002
) -> list[tuple[str, float, float]]:
    """The phases of a step: which, from when, until when; one that takes no more than `least` of
    the whole is left out."""
    begun = [(0.0, "forward")]
    begun += [(p[0], p[2].removeprefix(PHASE)) for p in points if p[2].startswith(PHASE)]
    ends = [*(begin for begin, _ in begun[1:]), end]
    return [
        (name, begin, until)
        for (begin, name), until in zip(begun, ends, strict=True)
        if until - begin > least * end
    ]


def _phases(axis, points: Sequence[tuple[float, int, str]], end: float) -> None:
    for name, begin, until in phases(points, end):
        axis.axvspan(begin / end, until / end, color=PHASES[name], linewidth=0, zorder=0)


def _all_tensors(axis, name: str, run: Run, end: float) -> None:
    times, held = _stairs(run.memory, end)
    axis.fill_between(times, held, step="post", color=method(3), linewidth=0)
    axis.plot(times, held, color=LINE, linewidth=0.9, drawstyle="steps-post")
    times, whole = _stairs(run.whole, end)
    axis.fill_between(times, whole, step="post", color=SHADE, linewidth=0)
    axis.set_title(f"{name}: all tensors", loc="left")


def _gathered(axis, run: Run, end: float) -> None:
    times, whole = _stairs(run.whole, end)
    axis.fill_between(times, whole, step="post", color=SHADE, linewidth=0)
    limit = run.limit / MEGA
    axis.axhline(limit, color=INK, linestyle="--", linewidth=1.1)
    axis.set_ylim(0, 1.3 * limit)
    told = f"largest unit {limit:.2f}"
    if run.shard is not None:
        shard = run.shard / MEGA
        told += f"; with the shard's {shard:.2f}: {shard + limit:.2f}"
    axis.text(0.995, 1.03 * limit, told, ha="right", va="bottom", fontsize=8)
    axis.set_title("gathered parameters, enlarged", loc="left")


def _legend(figure) -> None:
    from matplotlib.lines import Line2D

    looks = {
        "all tensors": {"facecolor": method(3), "edgecolor": LINE},
        "gathered parameters": {"facecolor": SHADE},
        **{name: {"facecolor": shade, "edgecolor": QUIET} for name, shade in PHASES.items()},
    }
    limit = Line2D([], [], color=INK, linestyle="--", linewidth=1.1, label="largest unit")
    legend(figure, looks, limit)


def _stairs(points: Sequence[tuple[float, int, str]], end: float) -> tuple[list, list]:
    """Parts of the step and megabytes, up to its end."""
    times = [point[0] / end for point in points] + [1.0]
    levels = [max(0, point[1]) / MEGA for point in points]
    return times, [*levels, levels[-1]]


def _in_words(runs: Mapping[str, Run]) -> str:
    told = [
        f"{name}: at most {max(point[1] for point in run.whole) / MEGA:.2f} MB of gathered "
        f"parameters, by the formula {run.limit / MEGA:.2f}, in {_heights(run.whole)} hills; all "
        f"tensors together reach {run.peak / MEGA:.1f} MB."
        for name, run in runs.items()
    ]
    return f"Memory over the time of a step, above what is held between. {' '.join(told)}"


def _heights(points: Sequence[tuple[float, int, str]]) -> int:
    """How often parameters come and go: the line's ways up that end in a way down."""
    levels = [point[1] for point in points if not point[2].startswith(PHASE)]
    return sum(
        before < now and (after is None or after < now)
        for before, now, after in zip([0, *levels], levels, [*levels[1:], None], strict=False)
    )
