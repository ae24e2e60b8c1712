"""The ladder of `walk_ladder`, with the right way down it and back up in rows. An `Attempt` is a
machine that records the tried settings and raises if one needs too much. Lesson 12."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from course_classroom.judge import bench
from course_lessons.lesson_12 import runs
from course_lib.memory import OutOfMemory

KEYS = ("rows", "accumulate", "recompute", "stage", "offload")
REMEDIES = (
    {"recompute": True},
    {"stage": 2},
    {"offload": "cpu"},
    {"stage": 3, "offload": None},
    {"offload": "cpu"},
    {"offload": runs.BOTH},
)
# Of an engine: its stage, and the offloaded parts.
KINDS = [(0, None), *((stage, away) for stage in (1, 2, 3) for away in (None, "cpu"))]
KINDS.append((3, runs.BOTH))
ENOUGH = 60  # attempts; the longest way has 14
Needs = Callable[[Mapping], int]  # the bytes that a setting needs


def ladder(rows: int) -> Iterator[dict]:
    """Yield the settings of the start and of each rung, which adds to the earlier rungs."""
    now = {"rows": rows, "accumulate": 1, "recompute": False, "stage": 0, "offload": None}
    for rung in ({}, {"rows": 1, "accumulate": rows}, *REMEDIES):
        now = {**now, **rung}
        yield now


def on_rung(of: int, rung: int, rows: int) -> dict:
    """Return the settings of a rung, with `rows` rows at a time out of `of`."""
    return {**list(ladder(of))[rung], "rows": rows, "accumulate": of // rows}


def rung_of(settings: Mapping) -> int | None:
    """Return the rung of settings regardless of rows (1 for the start), or None if no rung fits."""
    rungs = enumerate(list(ladder(1))[1:], 1)
    return next((i for i, rung in rungs if all(settings[k] == rung[k] for k in KEYS[2:])), None)


def batch_of(settings: Mapping) -> int | None:
    """Return the rows of a step, or None if the counts are not positive integers."""
    counts = settings["rows"], settings["accumulate"]
    whole = all(isinstance(k, int) and not isinstance(k, bool) and k > 0 for k in counts)
    return counts[0] * counts[1] if whole else None


class _AnotherBatch(BaseException):
    """An exception that ends a walk with a different batch, for which no engine should run."""


@dataclass
class Attempt:
    """Training steps on a machine with `limit` bytes; a setting needs `needs(setting)` bytes."""

    rows: int
    limit: int
    needs: Needs
    where: str
    tried: list[dict] = field(default_factory=list)

    def __call__(self, **settings) -> int:
        """Train a step with these settings; return the peak bytes, or raise OutOfMemory."""
        unknown = set(settings) ^ set(KEYS)
        if unknown:
            raise TypeError(f"attempt takes {', '.join(KEYS)}, so check {', '.join(unknown)}")
        self.tried.append(copy.deepcopy(settings))
        if len(self.tried) > ENOUGH:
            raise RuntimeError(f"more than {ENOUGH} attempts: does the walk end?")
        if batch_of(settings) != self.rows:
            raise _AnotherBatch
        most = self.needs(settings)
        if most > self.limit:
            raise OutOfMemory("device", most - self.limit, self.limit, self.limit, "a step")
        return most

    def fits(self, settings: Mapping) -> bool:
        try:
            self(**settings)
        except OutOfMemory:
            return False
        return True


def walk(attempt: Attempt) -> dict | None:
    """Take the right walk: down until a step fits, then up to the most rows that fit."""
    settings = next(filter(attempt.fits, ladder(attempt.rows)), None)
    while settings and settings["accumulate"] > 1:
        more = {**settings, "rows": 2 * settings["rows"], "accumulate": settings["accumulate"] // 2}
        if not attempt.fits(more):
            break
        settings = more
    return settings


def report(function: Callable, machine: Attempt) -> dict:
    """Run the answer's walk on a machine, and the right walk for comparison."""
    right, short = walk(machine), list(machine.tried)
    machine.tried.clear()
    raised, out = False, None
    try:
        out, _ = bench.watched(lambda: function(machine, machine.rows))
    except OutOfMemory:
        raised = True
    except _AnotherBatch:
        pass
    settings = plain(out) if isinstance(out, Mapping) and set(out) == set(KEYS) else None
    sound = (  # an engine with these settings and this batch is possible
        settings is not None
        and batch_of(settings) == machine.rows
        and settings["recompute"] in (False, True)
        and (settings["stage"], settings["offload"]) in KINDS
    )
    return {
        "kind": type(out).__name__,
        "raised": raised,
        "settings": settings,
        "right": right,
        "needs": machine.needs(settings) if sound else None,
        "rows": machine.rows,
        "limit": machine.limit,
        "where": machine.where,
        "tried": list(map(plain, machine.tried)),
        "short": short,
    }


def plain(settings: Mapping) -> dict:
    """Return settings that can be sent and compared, with words for any invalid value."""

    def sent(value: object) -> object:
        if value is None or type(value) in (bool, int, float, str) or value == runs.BOTH:
            return value
        try:
            return operator.index(value)
        except Exception:  # any object that an answer put there
            return repr(value)[:80]

    return {key: sent(settings[key]) for key in KEYS}
