"""Pipeline schedules as data: for each stage a list of steps, forward or backward of a micro-batch.

What a schedule costs: how long stages stand idle (the bubble), from the times at which each step
was walked. Appendix E4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

FORWARD, BACKWARD = "F", "B"
UNITS = {FORWARD: 1, BACKWARD: 2}  # work: a backward has two products for each of a forward's


class Step(NamedTuple):
    """One stage's forward or backward of one micro-batch."""

    kind: str
    micro: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro}"


class Timed(NamedTuple):
    """A step with its beginning and its end, in units of work."""

    step: Step
    start: int
    end: int


Schedule = Callable[[int, int, int], list[Step]]


def gpipe(stages: int, micros: int, stage: int) -> list[Step]:
    """All forwards, then all backwards, the last micro-batch's first (Huang et al. 2019)."""
    check(stages, micros, stage)
    forwards = [Step(FORWARD, k) for k in range(micros)]
    return forwards + [Step(BACKWARD, k) for k in reversed(range(micros))]


def one_f_one_b(stages: int, micros: int, stage: int) -> list[Step]:
    """A backward as soon as there is one: p - 1 - stage forwards ahead, then one and one in turn,
    then the backwards that are left (PipeDream-Flush, Narayanan et al. 2021)."""
    check(stages, micros, stage)
    ahead = min(stages - 1 - stage, micros)
    steps = [Step(FORWARD, k) for k in range(ahead)]
    for k in range(ahead, micros):
        steps += [Step(FORWARD, k), Step(BACKWARD, k - ahead)]
    return steps + [Step(BACKWARD, k) for k in range(micros - ahead, micros)]


SCHEDULES: dict[str, Schedule] = {"gpipe": gpipe, "1f1b": one_f_one_b}


def named(schedule: str) -> Schedule:
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r} is none of {', '.join(SCHEDULES)}")
    return SCHEDULES[schedule]


def bubble(timed: Sequence[Sequence[Timed]]) -> Fraction:
    """Idle units of the stages over their units of work, from the first step's start to the end."""
    end = max(step.end for steps in timed for step in steps)
    work = sum(step.end - step.start for steps in timed for step in steps)
    return Fraction(end * len(timed) - work, work)


def check(stages: int, micros: int, stage: int = 0) -> None:
    if stages < 1 or micros < 1:
        raise ValueError(
            f"{stages} stages and {micros} micro-batches: a pipeline has one or more of each"
        )
    if not 0 <= stage < stages:
        raise ValueError(f"stage={stage} is not among {stages} stages: they are 0 … {stages - 1}")
