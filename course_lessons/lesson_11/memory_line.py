"""Memory over time: a step's memory above the memory between steps, and its gathered parameters.
Each way to run the step has a row. The left panels show all tensors on one scale, and the right
panels show the gathered parameters, each on a separate scale.

`whole_units` records the gathered memory of a stage-3 engine at each gather and free, and the start
of each phase of the step. Lesson 11 draws a step with units of three sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from course_classroom.figures.colours import INK, QUIET, Picture, draw, in_words, method
from course_classroom.figures.shapes import legend

if TYPE_CHECKING:
    from course_lib.zero import Engine

MEGA = 1e6
SHADE, LINE = method(1), method(0)
PHASES = {"forward": "#ffffff", "backward": "#e9eaec", "step": "#d3d5d8"}
PHASE = "phase "  # begins the note of a phase
PANEL = 1.2  # inches


class Moment(NamedTuple):
    """A time from which `nbytes` of gathered parameters are in memory."""

    seconds: float
    nbytes: int
    what: str  # "come" or "go", and the unit; or "phase" and its name


class Run(NamedTuple):
    """A step to draw: the meter's points, the units' points, and the formula's results."""

    memory: Sequence[tuple[float, int, str]]
    whole: Sequence[tuple[float, int, str]]
    limit: int  # bytes of parameters gathered at once, by the formula: the largest unit
    shard: int  # bytes of parameters that stay between steps

    @property
    def peak(self) -> int:
        return max(point[1] for point in self.memory)


@contextmanager
def whole_units(engine: Engine) -> Iterator[list[Moment]]:
    """Record the gathered bytes of the units' buffers at each gather and free."""
    units, zero, moments = engine.shards.units, time.perf_counter(), []

    def note(what: str) -> None:
        now = sum(unit.buffer.untyped_storage().nbytes() for unit in units)
        if not moments or moments[-1].nbytes != now:
            moments.append(Moment(time.perf_counter() - zero, now, what))

    def note_phase(word: str) -> None:
        moments.append(Moment(time.perf_counter() - zero, moments[-1].nbytes, PHASE + word))

    def around(it: object, method: str, after: Callable, before: Callable = lambda: None) -> None:
        inner = getattr(it, method)

        def call(*args, **more):
            before()
            try:
                return inner(*args, **more)
            finally:
                after()

        # On the object, so that its own calls use it too.
        patched.enter_context(patch.object(it, method, call))

    note("begin")
    with ExitStack() as patched:
        for word in ("backward", "step"):
            around(engine, word, partial(note_phase, "forward"), partial(note_phase, word))
        for unit in units:
            around(unit, "start", partial(note, f"come {unit.name}"))
            around(unit, "free", partial(note, f"go {unit.name}"))
        yield moments


def memory_line(runs: Mapping[str, Run], *, title: str = "") -> Picture:
    """Draw each run's memory above the memory between steps, over the time of its step."""
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
        figure.supylabel("MB above the memory between steps", fontsize=9)
        looks = {
            "all tensors": {"facecolor": method(3), "edgecolor": LINE},
            "gathered parameters": {"facecolor": SHADE},
            **{name: {"facecolor": shade, "edgecolor": QUIET} for name, shade in PHASES.items()},
        }
        legend(figure, looks, rows[0, 1].lines[0])

    words = {
        name: (
            f"at most {max(point[1] for point in run.whole) / MEGA:.2f} MB of gathered parameters, "
            f"by the formula {run.limit / MEGA:.2f}, in {_hills(run.whole)} hills",
            f"all tensors together reach {run.peak / MEGA:.1f} MB",
        )
        for name, run in runs.items()
    }
    first = "Memory over the time of a step, above the memory between steps"
    alt = in_words(first, words, between="; ")
    return draw((8.4, PANEL * len(runs) + 1.0), alt, paint, title)


def _phases(axis, points: Sequence[tuple[float, int, str]], end: float) -> None:
    begun = [(0.0, "forward")]
    begun += [(p[0], p[2].removeprefix(PHASE)) for p in points if p[2].startswith(PHASE)]
    for (begin, name), (until, _) in pairwise([*begun, (end, "")]):
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
    axis.axhline(limit, color=INK, linestyle="--", linewidth=1.1, label="largest unit")
    axis.set_ylim(0, 1.3 * limit)
    shard = run.shard / MEGA
    told = f"largest unit {limit:.2f}, with the shard's {shard:.2f}: {shard + limit:.2f}"
    axis.text(0.995, 1.03 * limit, told, ha="right", va="bottom", fontsize=8)
    axis.set_title("gathered parameters, enlarged", loc="left")


def _stairs(points: Sequence[tuple[float, int, str]], end: float) -> tuple[list, list]:
    """Return times as fractions of the step, and megabytes, up to the step's end."""
    times = [point[0] / end for point in points] + [1.0]
    levels = [max(0, point[1]) / MEGA for point in points]
    return times, [*levels, levels[-1]]


def _hills(points: Sequence[tuple[float, int, str]]) -> int:
    """Count the peaks of the line: rises (gathers) that are followed by a fall (a free)."""
    levels = [0, *(point[1] for point in points if not point[2].startswith(PHASE)), 0]
    triples = zip(levels, levels[1:], levels[2:], strict=False)
    return sum(before < now > after for before, now, after in triples)
