"""Pipeline schedules as data: each stage's list of forward and backward steps of micro-batches.

The cost of a schedule is the idle time of its stages (the bubble), computed from the times of the
steps. Appendix E4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

FORWARD, BACKWARD = "F", "B"
UNITS = {FORWARD: 1, BACKWARD: 2}  # work: a backward pass has twice as many products


class Step(NamedTuple):
    """One stage's forward or backward pass of one micro-batch."""

    kind: str
    micro: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro}"


class Timed(NamedTuple):
    """A step with its start and end, in units of work."""

    step: Step
    start: int
    end: int


Schedule = Callable[[int, int, int], list[Step]]


def gpipe(stages: int, micros: int, stage: int) -> list[Step]:
    """Return all forward passes, then all backward passes in reverse (Huang et al. 2019)."""
    check(stages, micros, stage)
    forwards = [Step(FORWARD, k) for k in range(micros)]
    return forwards + [Step(BACKWARD, k) for k in reversed(range(micros))]


def one_f_one_b(stages: int, micros: int, stage: int) -> list[Step]:
    """Return a schedule with early backward passes: p - 1 - stage forward passes, then alternating
    passes, then the remaining backward passes (PipeDream-Flush, Narayanan et al. 2021)."""
    check(stages, micros, stage)
    ahead = min(stages - 1 - stage, micros)
    steps = [Step(FORWARD, k) for k in range(ahead)]
    for k in range(ahead, micros):
        steps += [Step(FORWARD, k), Step(BACKWARD, k - ahead)]
    return steps + [Step(BACKWARD, k) for k in range(micros - ahead, micros)]


SCHEDULES: dict[str, Schedule] = {"gpipe": gpipe, "1f1b": one_f_one_b}


def named(schedule: str) -> Schedule:
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r} is not among {', '.join(SCHEDULES)}")
    return SCHEDULES[schedule]


def bubble(timed: Sequence[Sequence[Timed]]) -> Fraction:
    """Return the ratio of all stages' idle units to their units of work, until the last end."""
    end = max(step.end for steps in timed for step in steps)
    work = sum(step.end - step.start for steps in timed for step in steps)
    return Fraction(end * len(timed) - work, work)


def check(stages: int, micros: int, stage: int = 0) -> None:
    if stages < 1 or micros < 1:
        raise ValueError(
            f"a pipeline needs at least one stage and one micro-batch, not {stages} and {micros}"
        )
    if not 0 <= stage < stages:
        raise ValueError(f"stage={stage} is not among {stages} stages; they are 0 … {stages - 1}")
