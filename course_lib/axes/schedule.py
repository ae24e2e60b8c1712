"""Pipeline schedules as data: for each stage a list of steps, forward or backward of a micro-batch.

What a schedule costs follows from it without running it: when each step can begin, how long stages
stand idle (the bubble), how many micro-batches' activations a stage has at once. Appendix E4.
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


def timetable(schedule: Sequence[Sequence[Step]]) -> list[list[Timed]]:
    """When each stage's steps begin and end: a step waits for the stage's step before it, a forward
    for the same forward one stage up, a backward for the same backward one stage down.

    A schedule in which stages wait for each other in a circle is refused, and one in which they do
    not take micro-batches in the same order: a message does not say whose it is.
    """
    for kind in (FORWARD, BACKWARD):
        orders = [[step.micro for step in steps if step.kind == kind] for steps in schedule]
        for stage, order in enumerate(orders):
            if order != orders[0]:
                raise ValueError(
                    f"stage {stage} takes the micro-batches of {kind} in the order {order} and "
                    f"stage 0 in {orders[0]}; messages between them carry no numbers, so give all "
                    "stages the same order"
                )
    done: dict[tuple[int, Step], int] = {}  # when it ended
    timed: list[list[Timed]] = [[] for _ in schedule]
    last = len(schedule) - 1

    def arrival(stage: int, step: Step) -> int | None:
        """When the step's input is there; None as long as the neighbour has not made it."""
        neighbour = stage - 1 if step.kind == FORWARD else stage + 1
        if step.kind == BACKWARD and (stage, Step(FORWARD, step.micro)) not in done:
            return None
        return done.get((neighbour, step)) if 0 <= neighbour <= last else 0

    while True:
        went_on = False
        for stage, steps in enumerate(schedule):
            while len(timed[stage]) < len(steps):
                step = steps[len(timed[stage])]
                there = arrival(stage, step)
                if there is None:
                    break
                start = max(there, timed[stage][-1].end if timed[stage] else 0)
                end = done[stage, step] = start + UNITS[step.kind]
                timed[stage].append(Timed(step, start, end))
                went_on = True
        if not went_on:
            break
    stuck = [
        f"stage {i} before {steps[len(timed[i])]}"
        for i, steps in enumerate(schedule)
        if len(timed[i]) < len(steps)
    ]
    if stuck:
        raise ValueError(
            f"these stages wait for each other and never go on: {', '.join(stuck)}; let forwards "
            "come earlier, and a backward after its forward"
        )
    return timed


def bubble(timed: Sequence[Sequence[Timed]]) -> Fraction:
    """Idle units of the stages over their units of work, from the first step's start to the end."""
    end = max(step.end for steps in timed for step in steps)
    work = sum(step.end - step.start for steps in timed for step in steps)
    return Fraction(end * len(timed) - work, work)


def most_alive(steps: Sequence[Step]) -> int:
    """How many micro-batches have been through a stage's forward and not yet its backward, at
    most: so many times it keeps the activations of one."""
    alive = most = 0
    for step in steps:
        alive += 1 if step.kind == FORWARD else -1
        most = max(most, alive)
    return most


def check(stages: int, micros: int, stage: int = 0) -> None:
    if stages < 1 or micros < 1:
        raise ValueError(
            f"{stages} stages and {micros} micro-batches: a pipeline has one or more of each"
        )
    if not 0 <= stage < stages:
        raise ValueError(f"stage={stage} is not among {stages} stages: they are 0 … {stages - 1}")
