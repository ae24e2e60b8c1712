"""What runs on the judge's ranks for `walk_ladder`: attempts that really train, and run out.

Every attempt is a step of an engine under the meter; it fails on all ranks alike where one of them
held more than the budget. A setting is measured once. Then machines of paper, with more rows: a
step takes so much for each row, less where it is recomputed, and so much for the states of a stage.
Lesson 12.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

import torch.distributed as dist

from course_lib.classroom.checks.lesson_12 import runs
from course_lib.classroom.checks.lesson_12.ladder_walk import Attempt, ladder, report, walk

ROWS = 2
# (the rung where it fits first, how many rows fit there); None: nothing fits
BUDGETS = ((4, 2), (0, ROWS), (2, 1), (7, 1), None)
# On paper: (a rank's rows, the first rung that fits, how many rows fit there).
MACHINES = (
    (8, 0, 8), (16, 1, 2), (8, 2, 4), (64, 3, 64), (16, 4, 4), (32, 5, 8), (8, 6, 8), (64, 7, 32),
    (1, 4, 1), (4, None, 0),
)  # fmt: skip
STAGES = (
    *((0, None), (1, None), (1, "cpu"), (2, None), (2, "cpu")),
    *((3, None), (3, "cpu"), (3, runs.BOTH)),
)


def warm() -> None:
    """Load what a first use would."""
    runs.config_of(0)


class Needs:
    """What a setting takes on this group, measured once."""

    def __init__(self, seed: int, group: dist.ProcessGroup, known: dict[str, int]):
        self.seed, self.group, self.mesh = seed, group, runs.mesh_of(group)
        self.known = known

    def __call__(self, settings: Mapping) -> int:
        key = repr(sorted(settings.items(), key=str))
        if key not in self.known:
            one = dict(settings)
            config = runs.config_of(self.seed, recompute=one.pop("recompute"))
            self.known[key] = runs.step_needs(config, self.mesh, self.group, **one)
        return self.known[key]


def machines(needs: Needs) -> Iterator[Attempt]:
    """One for each of BUDGETS: with what the wanted setting takes on this group."""
    for wanted in BUDGETS:
        limit = 1000
        if wanted is not None:
            rung, rows = wanted
            setting = {**list(ladder(ROWS))[rung], "rows": rows, "accumulate": ROWS // rows}
            limit = needs(setting)
        yield Attempt(ROWS, limit, needs)


def on_paper(rows: int, rung: int | None, fit: int, seed: int) -> Attempt:
    """A machine on which `fit` of `rows` fit at `rung`, and on no rung before it any."""
    drawn = random.Random(seed)
    row = drawn.randint(2, 4)  # bytes of a recomputed one
    kept = row * drawn.randint(70, 90)  # of one that is not
    states = [drawn.randint(1, 99) + 1000 * k for k in range(len(STAGES), 0, -1)]

    def needs(settings: Mapping) -> int:
        way = settings["stage"], settings["offload"]
        if way not in STAGES:
            raise ValueError(f"no engine takes {dict(settings)}")
        each = row if settings["recompute"] else kept
        return settings["rows"] * each + states[STAGES.index(way)]

    limit = 0 if rung is None else needs({**list(ladder(rows))[rung], "rows": fit})
    return Attempt(rows, limit, needs)


def measure(seed: int, members: list[int]) -> dict[str, int]:
    """What the settings on the right ways take on these ranks; all ranks call this."""
    group = dist.new_group(members)
    if dist.get_rank() not in members:
        return {}
    needs = Needs(seed, group, {})
    for machine in machines(needs):
        walk(machine)
    return needs.known


def run(function: Callable, group: dist.ProcessGroup, seed: int, known: list[dict]) -> dict:
    """The answer's walk under each budget, beside the right one; then on machines of paper."""
    needs = Needs(seed, group, known[group.rank()])
    paper = (on_paper(*one, seed + k) for k, one in enumerate(MACHINES))
    return {
        "walks": [report(function, machine) for machine in machines(needs)],
        "paper": [report(function, machine) for machine in paper],
    }
