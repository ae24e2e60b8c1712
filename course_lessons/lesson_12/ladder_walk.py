"""The ladder of `walk_ladder`, and the right way down it and back up in rows. An `Attempt` stands
for a machine, keeps what was tried on it, and raises where a setting needs too much. Lesson 12."""

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
# Of an engine: its stage, and what is away.
KINDS = [(0, None), *((stage, away) for stage in (1, 2, 3) for away in (None, "cpu"))]
KINDS.append((3, runs.BOTH))
ENOUGH = 60  # attempts; the longest way that is tried has 14
Needs = Callable[[Mapping], int]  # the bytes that a setting takes


def ladder(rows: int) -> Iterator[dict]:
    """The start, and each rung on top of those before it."""
    now = {"rows": rows, "accumulate": 1, "recompute": False, "stage": 0, "offload": None}
    for rung in ({}, {"rows": 1, "accumulate": rows}, *REMEDIES):
        now = {**now, **rung}
        yield now


def on_rung(of: int, rung: int, rows: int) -> dict:
    """The settings there, with so many rows at once of as many as a batch has."""
    return {**list(ladder(of))[rung], "rows": rows, "accumulate": of // rows}


def rung_of(settings: Mapping) -> int | None:
    """How far down a setting is, whatever its rows (rung 1 for the start); None: on no rung."""
    rungs = enumerate(list(ladder(1))[1:], 1)
    return next((i for i, rung in rungs if all(settings[k] == rung[k] for k in KEYS[2:])), None)


def batch_of(settings: Mapping) -> int | None:
    """The rows that a step trains on; None where these are no whole numbers."""
    counts = settings["rows"], settings["accumulate"]
    whole = all(isinstance(k, int) and not isinstance(k, bool) and k > 0 for k in counts)
    return counts[0] * counts[1] if whole else None


class _AnotherBatch(BaseException):
    """Ends a walk that would train with another batch: no engine is to run with it."""


@dataclass
class Attempt:
    """One step on a machine with `limit` bytes, of which a setting takes `needs(setting)`."""

    rows: int
    limit: int
    needs: Needs
    where: str
    tried: list[dict] = field(default_factory=list)

    def __call__(self, **settings) -> int:
        """Train a step like this: the most bytes that were held, or OutOfMemory."""
        unknown = set(settings) ^ set(KEYS)
        if unknown:
            raise TypeError(f"attempt takes {', '.join(KEYS)}; what of {', '.join(unknown)}?")
        self.tried.append(copy.deepcopy(settings))
        if len(self.tried) > ENOUGH:
            raise RuntimeError(f"that were more than {ENOUGH} attempts: does the walk end?")
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
    """The right way: down until it fits, then as many rows as fit."""
    settings = next(filter(attempt.fits, ladder(attempt.rows)), None)
    while settings and settings["accumulate"] > 1:
        more = {**settings, "rows": 2 * settings["rows"], "accumulate": settings["accumulate"] // 2}
        if not attempt.fits(more):
            break
        settings = more
    return settings


def report(function: Callable, machine: Attempt) -> dict:
    """The answer's walk on a machine, beside the right one."""
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
    sound = (  # an engine of these settings can be made, with that batch
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
    """Settings that can be sent and compared: whole numbers as int, what is no setting in words."""

    def sent(value: object) -> object:
        if value is None or type(value) in (bool, int, float, str) or value == runs.BOTH:
            return value
        try:
            return operator.index(value)
        except Exception:  # whatever an answer has put there
            return repr(value)[:80]

    return {key: sent(settings[key]) for key in KEYS}
