"""What runs on the judge's ranks for `walk_ladder`: attempts that really train, and run out.

Every attempt is a step of an engine under the meter; it fails on all ranks alike where one of them
held more than the budget. A setting is measured once. Then machines of paper. Lesson 12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch.distributed as dist

from course_lib.classroom.checks.lesson_12 import ladder_paper, runs
from course_lib.classroom.checks.lesson_12.ladder_walk import Attempt, ladder, report, walk

ROWS = 2
# (the rung where it fits first, how many rows fit there); None: nothing fits
BUDGETS = ((4, 2), (0, ROWS), (2, 1), (7, 1), None)


def warm() -> None:
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
    engines = [report(function, machine) for machine in machines(needs)]
    return {"walks": engines, "paper": ladder_paper.walks(function, seed)}
