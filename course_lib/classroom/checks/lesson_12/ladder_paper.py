"""Machines of paper for `walk_ladder`: one for each rung, with more rows than engines are run with.

A step takes so much for each row, less where it is recomputed, and so much for the states of a
stage. Nothing is sent and nothing trained, so there can be many. Lesson 12.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from course_lib.classroom.checks.lesson_12 import runs
from course_lib.classroom.checks.lesson_12.ladder_walk import Attempt, ladder, report

# (a rank's rows, the first rung that fits, how many rows fit there); None: nothing fits
MACHINES = (
    (8, 0, 8), (16, 1, 2), (8, 2, 4), (64, 3, 64), (16, 4, 4), (32, 5, 8), (8, 6, 8), (64, 7, 32),
    (1, 4, 1), (4, None, 0),
)  # fmt: skip
STAGES = (
    *((0, None), (1, None), (1, "cpu"), (2, None), (2, "cpu")),
    *((3, None), (3, "cpu"), (3, runs.BOTH)),
)


def machine(rows: int, rung: int | None, fit: int, seed: int) -> Attempt:
    """A machine on which `fit` of `rows` fit at `rung`, and on no rung before it any."""
    drawn = random.Random(seed)
    row = drawn.randint(2, 4)  # bytes of a recomputed one
    kept = row * drawn.randint(70, 90)  # of one that is not
    states = [drawn.randint(1, 99) + 1000 * k for k in range(len(STAGES), 0, -1)]

    def needs(settings: Mapping) -> int:
        try:
            there = states[STAGES.index((settings["stage"], settings["offload"]))]
        except ValueError:
            raise ValueError(f"no engine takes {dict(settings)}") from None
        return settings["rows"] * (row if settings["recompute"] else kept) + there

    limit = 0
    if rung is not None:
        limit = needs({**list(ladder(rows))[rung], "rows": fit})
    return Attempt(rows, limit, needs)


def walks(function: Callable, seed: int) -> list[dict]:
    """The answer's walk on every machine."""
    return [report(function, machine(*one, seed + k)) for k, one in enumerate(MACHINES)]
