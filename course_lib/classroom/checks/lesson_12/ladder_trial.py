"""What runs on the judge's ranks for `walk_ladder`: attempts that really train, and run out.

Every attempt is a step of an engine under the meter; it fails on all ranks alike where one of them
held more than the budget. A setting is measured once. Lesson 12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch.distributed as dist

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_12 import runs
from course_lib.memory import OutOfMemory

ROWS = 2
START = {"rows": ROWS, "accumulate": 1, "recompute": False, "stage": 0, "offload": None}
RUNGS = (
    {"rows": 1, "accumulate": ROWS},
    {"recompute": True},
    {"stage": 2},
    {"offload": "cpu"},
    {"stage": 3, "offload": None},
    {"offload": "cpu"},
    {"offload": runs.BOTH},
)
# (the rung where it fits first, how many rows fit there); None: nothing fits
BUDGETS = ((3, 2), (0, ROWS), (1, 1), (6, 1), None)
MOST = 12  # attempts that are worth while; who tries more tries what was tried


def warm() -> None:
    runs.config_of(0)


def ladder() -> Iterator[dict]:
    """The start, and each rung on top of those before it."""
    now = dict(START)
    yield dict(now)
    for rung in RUNGS:
        now |= rung
        yield dict(now)


class Attempts:
    """What a setting needs on this group, and a budget that it is held to."""

    def __init__(self, seed: int, group: dist.ProcessGroup, known: dict[str, int]):
        self.seed, self.group, self.mesh = seed, group, runs.mesh_of(group)
        self.known = known
        self.limit: int | None = None
        self.tried: list[dict] = []

    def needs(self, settings: Mapping) -> int:
        key = repr(sorted(settings.items(), key=str))
        if key not in self.known:
            one = dict(settings)
            config = runs.config_of(self.seed, recompute=one.pop("recompute"))
            self.known[key] = runs.step_needs(config, self.mesh, self.group, **one)
        return self.known[key]

    def __call__(self, **settings) -> int:
        """Train a step like this: the most bytes that were held, or OutOfMemory."""
        unknown = set(settings) ^ set(START)
        if unknown:
            raise TypeError(f"attempt takes {', '.join(START)}; what of {', '.join(unknown)}?")
        self.tried.append(dict(settings))
        if len(self.tried) > 3 * MOST:
            raise RuntimeError("that were more than thirty attempts: does the walk end?")
        most = self.needs(settings)
        if most > self.limit:
            raise OutOfMemory("device", most - self.limit, self.limit, self.limit, "a step")
        return most


def walk(attempt: Attempts) -> dict | None:
    """The right way: down until it fits, then as many rows as fit."""
    for settings in ladder():
        if fits(attempt, settings):
            break
    else:
        return None
    while settings["accumulate"] > 1:
        more = {**settings, "rows": 2 * settings["rows"], "accumulate": settings["accumulate"] // 2}
        if not fits(attempt, more):
            break
        settings = more
    return settings


def fits(attempt: Attempts, settings: Mapping) -> bool:
    try:
        attempt(**settings)
    except OutOfMemory:
        return False
    return True


def limits(attempt: Attempts) -> list[int]:
    """A budget for each of BUDGETS: what the wanted setting takes on this group."""
    every, found = list(ladder()), []
    for wanted in BUDGETS:
        if wanted is None:
            found.append(1000)
            continue
        rung, rows = wanted
        one = every[rung + 1 if rung else 0]
        if rung:
            one = {**one, "rows": rows, "accumulate": ROWS // rows}
        found.append(attempt.needs(one))
    return found


def measure(seed: int, members: list[int]) -> dict[str, int]:
    """What the settings on the right ways take on these ranks; all ranks call this."""
    group = dist.new_group(members)
    if dist.get_rank() not in members:
        return {}
    attempt = Attempts(seed, group, {})
    for limit in limits(attempt):
        attempt.limit = limit
        walk(attempt)
    return attempt.known


def run(function: Callable, seed: int, known: dict[str, int], group: dist.ProcessGroup) -> dict:
    """The answer's walk under each budget, beside the right one."""
    attempt, told = Attempts(seed, group, known), []
    for limit in limits(attempt):
        attempt.limit, attempt.tried = limit, []
        right, short = walk(attempt), list(attempt.tried)
        attempt.tried = []
        try:
            out, _ = bench.watched(lambda: function(attempt, ROWS))
        except OutOfMemory:
            out = "out of memory"
        tried = list(attempt.tried)
        strange = isinstance(out, Mapping) and set(out) != set(START)
        settings = dict(out) if isinstance(out, Mapping) and not strange else None
        known = None if settings is None or not _sound(settings) else attempt.needs(settings)
        told.append(
            {
                "kind": type(out).__name__,
                "raised": out == "out of memory",
                "settings": settings,
                "right": right,
                "needs": known,
                "limit": limit,
                "tried": tried,
                "short": short,
                "rungs": [rung_of(one) for one in tried],
            }
        )
    return {"walks": told}


def _sound(settings: dict) -> bool:
    """Whether an engine of these settings can be made and run at all."""
    try:
        whole = settings["rows"] * settings["accumulate"] == ROWS
        known = [{**one, "rows": 0, "accumulate": 0} for one in _combinations()]
        return whole and {**settings, "rows": 0, "accumulate": 0} in known
    except TypeError:
        return False


def _combinations() -> Iterator[dict]:
    for recompute in (False, True):
        for stage in (0, 1, 2, 3):
            for offload in (None, "cpu", runs.BOTH):
                if (stage or offload is None) and (stage == 3 or offload != runs.BOTH):
                    yield {**START, "recompute": recompute, "stage": stage, "offload": offload}


def rung_of(settings: Mapping) -> int | None:
    """How far down a setting is, whatever its rows; None where it is on no rung."""
    for i, one in reversed(list(enumerate(ladder()))):
        same = all(settings[k] == one[k] for k in ("recompute", "stage", "offload"))
        if same:
            return i
    return None
