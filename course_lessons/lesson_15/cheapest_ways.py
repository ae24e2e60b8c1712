"""Every way to train a case's model, with its days and its cost, as counted for `cheapest_plan`.

A wrong idea changes part of the count. Lesson 15.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from course_classroom.judge.by_cases import Case

DAY = 86400.0


class Found(NamedTuple):
    """A plan: machine, GPUs, stage, and the days and cost of the full training."""

    machine: int
    gpus: int
    stage: int
    days: float
    cost: float
    hourly: float
    single: float  # the cost of one of its GPUs
    first: int = 0  # for ideas that take the first one


def held(
    case: Case, stage: int, n: int, gradients: int = 2, states: int = 12, active: float = 1.0
) -> float:
    """Return a GPU's bytes: 2, 2 and 12 per parameter (sharded by stage), and activations."""
    parts = [2 / (n if stage > 2 else 1), gradients / (n if stage > 1 else 1)]
    of_states = states / (n if stage else 1)
    return case["parameters"] * (sum(parts) + of_states) + active * case["activations"]


def ways(
    case: Case,
    *,
    hides: float = 2 / 3,
    sends: float = 1.0,
    stages: Sequence[int] = range(4),
    fits: bool = True,
    full: bool = True,
    share: bool = True,
    moves: int = 3,
    spread: float = 0.0,
    **holds: float,
) -> Iterator[Found]:
    """Yield every machine and number of GPUs with the first stage that fits there."""
    params = case["parameters"]
    for i, machine in enumerate(case["machines"]):
        for n in machine["sizes"]:
            room = machine["memory"]
            more = {"active": n**spread, **holds}
            needs = {k: held(case, k, n, **more) for k in stages}
            fitting = [
                k for k in stages if not fits or needs[k] < room or (full and needs[k] == room)
            ]
            if not fitting:
                continue
            stage = fitting[0]
            computed = 6 * params * case["batch"] / ((n if share else 1) * machine["flops"])
            moved = (moves if stage == 3 else 2) * 2 * params * (n - 1) / n * sends
            shown = moved / machine["link"] - hides * computed
            days = case["tokens"] / case["batch"] * (computed + max(0.0, shown)) / DAY
            hourly = n * machine["price"]
            cost = 24 * days * hourly
            yield Found(i, n, stage, days, cost, hourly, cost / n)


def cheapest(case: Case, *, by: str = "cost", **how: object) -> Found | None:
    return min(considered(case, **how), key=lambda way: getattr(way, by), default=None)


def considered(
    case: Case, *, late: bool = False, exact: bool = True, one: str = "", **how: object
) -> list[Found]:
    """Return the plans in time. `one` keeps each machine's `first` size or `fewest` GPUs, or only
    the first `machine`. Without `exact`, a plan must end before the deadline."""
    days = case["days"]
    found = [
        way for way in ways(case, **how) if late or way.days < days or (exact and way.days == days)
    ]
    if one == "machine":
        return [way for way in found if way.machine == found[0].machine]
    if one:
        if one == "first":
            found.reverse()  # for equal keys the last one stays
        else:
            found.sort(key=lambda way: -way.gpus)
        found = list({way.machine: way for way in found}.values())
    return found
