"""`cheapest_plan` of lesson 15: which GPUs, how many, which stage train a model in time for least.

One count, `cheapest_ways.py`, serves for the right answer and for the wrong ideas.
"""

from __future__ import annotations

from random import Random

from course_classroom.judge.answer import Answer
from course_classroom.judge.by_cases import AnyOf, Case, Cases, Idea, judge_cases
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge
from course_classroom.judge.words import Page
from course_lessons.lesson_15.cheapest_ways import (
    DAY,
    Found,
    cheapest,
    considered,
    held,
    ways,
)

SAYS = Page(__file__, "cheapest_plan")

CHOICE, DAYS, COST = KEYS = ("choice", "days", "cost")
AT_THE_BORDER = 2  # the number of the case whose plan just fits and is just in time
SMALL = {1: 3.9, 3: 1.95}  # bytes a parameter, in every fourth case: stage 2 fits, or stage 3


def make(r: Random, k: int) -> Case:
    """One whose cheapest plan is cheaper than any other by more than digits."""
    while True:
        case = _drawn(r, k)
        costs = sorted(way.cost for way in ways(case) if way.days <= case["days"])
        if len(costs) < 2 or costs[1] > (1 + 1e-4) * costs[0]:
            return case


def _at_the_border(r: Random) -> Case:
    """The cheapest plan fills the memory exactly, and is done exactly in time: in numbers that any
    order of the operations counts alike, in bytes and in GB."""
    n, stage, days = 8, r.choice((1, 2)), r.choice((16, 24, 32))
    params, batch = 675 * 10**7, 2**24
    flops = 6.0 * params * batch / (n * 675)  # a step takes 675 s, 128 of them a day
    case = {"parameters": params, "tokens": 128 * days * batch, "batch": batch}
    case |= {"days": float(days), "activations": r.randint(2, 9) * 10**9, "machines": []}
    link, price = 10**12, r.choice((1.5, 2.0, 3.0))  # messages are hidden
    for dearer in (1.5, 2.5):
        more = {"link": link, "price": 2 * dearer * price, "sizes": [r.choice((6, 12, 24))]}
        case["machines"].append({"memory": 120 * 10**9, "flops": 2 * flops, **more})
    exact = {"flops": flops, "link": link, "price": price, "sizes": [n]}
    place = r.randint(0, 2)
    case["machines"].insert(place, {"memory": round(held(case, stage, n)), **exact})
    return case


def _drawn(r: Random, k: int) -> Case:
    if k == AT_THE_BORDER:
        return _at_the_border(r)
    params = r.randint(10, 60) * 10**8
    machines = []
    for memory, flops, link, price in ((24, 60, 4, 0.5), (80, 140, 12, 1.6), (80, 400, 25, 3.6)):
        first = r.choice((4, 6, 8))  # each kind in numbers of its own, in any order
        # Near neighbours: the smaller number may need stage 3 where the larger has stage 2.
        sizes = [first, first + 2, 2 * first, 4 * first]
        machines.append(
            {
                "memory": memory * 10**9,
                "flops": r.uniform(0.6, 1.4) * flops * 1e12,
                "link": r.uniform(0.4, 1.6) * link * 1e9,
                "price": r.uniform(0.6, 1.4) * price,
                "sizes": r.sample(sizes, len(sizes)),
            }
        )
    case = {"parameters": params, "tokens": r.randint(10, 40) * params}
    case |= {"batch": 2**18 * r.randint(1, 4), "activations": r.randint(2, 9) * 10**9}
    case["machines"] = machines
    if k % 4 in SMALL:  # small GPUs on slow links: one stage alone fits, and its messages show
        for machine in machines:
            machine["memory"] = round(params * SMALL[k % 4]) + case["activations"]
            machine["link"] /= 20
    least = min(found.days for found in ways({**case, "days": 1e9}))
    factor = 0.9 if k == 0 else r.choice((1.2, 2.0, 6.0))  # the first: nothing is in time
    return {**case, "days": factor * least}


def right(case: Case) -> dict[str, object]:
    found = cheapest(case)
    if found is None:
        return dict.fromkeys(KEYS)
    return {CHOICE: _choice(found), DAYS: found.days, COST: found.cost}


def _choice(found: Found | None) -> list[int] | None:
    return None if found is None else [found.machine, found.gpus, found.stage]


def _of(number, name: str):
    """A key's value made of the right way, None where there is none."""

    def gives(case: Case) -> object:
        found = cheapest(case)
        return None if found is None else number(case, found)

    gives.__name__ = name
    return gives


_READINGS = (
    ("the deadline forgotten", "Some of your choices are not done in time.", {"late": True}),
    (
        "the fastest",
        "That is the fastest of those that fit. Asked is for the cheapest in time.",
        {"by": "days"},
    ),
    (
        "the cheapest hour",
        "That has the lowest price an hour; it also takes longest.",
        {"by": "hourly"},
    ),
    ("gradients forgotten", "Gradients take 2 bytes a parameter too.", {"gradients": 0}),
    ("gradients in 32 bits", "Gradients have 2 bytes a parameter here.", {"gradients": 4}),
    (
        "nothing is sent",
        "Messages take time: what is longer than the backward is exposed.",
        {"sends": 0.0},
    ),
    (
        "nothing hides",
        "Messages overlap with the backward, two thirds of the computing; only "
        "what is longer is exposed.",
        {"hides": 0.0},
    ),
    ("parameters, not bytes", "A parameter has 2 bytes on the link.", {"sends": 0.5}),
    (
        "stage 3 always",
        "Stage 3 sends half as much again. Take it where a lower one does not fit.",
        {"stages": (3,)},
    ),
    (
        "no stage 0",
        "What fits without ZeRO needs no stage: the lowest one is 0.",
        {"stages": (1, 2, 3)},
    ),
    ("no stage 3", "Where stage 2 does not fit, stage 3 may.", {"stages": (0, 1, 2)}),
    (
        "activations forgotten",
        "Activations come on top of weights, gradients and states.",
        {"active": 0.0},
    ),
    (
        "activations shared out",
        "Each GPU has these activations: they are not shared out over N.",
        {"spread": -1.0},
    ),
    ("activations of all", "`activations` are the bytes on each GPU.", {"spread": 1.0}),
    (
        "states of 8 bytes",
        "States have 12 bytes a parameter: a copy in 32 bits, two moments.",
        {"states": 8},
    ),
    ("the first in time", "A later one of the plans that are in time costs less.", {"by": "first"}),
    (
        "the first size in time",
        "Of a machine you look at no size after the first that is in time. "
        "A later one may cost less: sizes come in any order.",
        {"one": "first"},
    ),
    (
        "the fewest in time",
        "Of a machine you take the smallest number that is in time. A larger "
        "one may cost less: it may fit at a stage that sends less.",
        {"one": "fewest"},
    ),
    (
        "what fits exactly",
        "What takes all of the memory, to the last byte, fits.",
        {"full": False},
    ),
    (
        "what is done exactly in time",
        "A plan that takes exactly `days` is in time.",
        {"exact": False},
    ),
    (
        "the first machine with a plan",
        "You look at no machine after the first that has a plan in time. A later one may "
        "cost less.",
        {"one": "machine"},
    ),
    ("of one GPU", "The price is that of one GPU; all of them run.", {"by": "single"}),
    (
        "all of it hides",
        "Messages overlap with the backward, which is two thirds of the "
        "computing, and not with all of it.",
        {"hides": 1.0},
    ),
    (
        "a third hides",
        "The backward is two thirds of the computing; the forward is one.",
        {"hides": 1 / 3},
    ),
    ("memory forgotten", "Some of your choices do not fit on a GPU.", {"fits": False}),
    ("one GPU computes", "N GPUs share the computing of a step.", {"share": False}),
)


def _reading(how: dict):
    """Its choice; where messages take no time, all numbers of a machine may cost the same."""
    by, rest = how.get("by", "cost"), {key: value for key, value in how.items() if key != "by"}

    def gives(case: Case) -> object:
        best = cheapest(case, **how)
        if best is None or by == "first":
            return _choice(best)
        most = (1 + 1e-9) * getattr(best, by)
        return AnyOf([_choice(way) for way in considered(case, **rest) if getattr(way, by) <= most])

    return gives


IDEAS = (
    *(Idea(CHOICE, name, text, _reading(how)) for name, text, how in _READINGS),
    Idea(
        DAYS,
        *SAYS.of("stage 3 as the others"),
        lambda c: getattr(cheapest(c, moves=2), "days", None),
    ),
    Idea(DAYS, *SAYS.of("hours"), _of(lambda c, f: 24 * f.days, "hours")),
    Idea(DAYS, *SAYS.of("seconds"), _of(lambda c, f: DAY * f.days, "seconds")),
    Idea(DAYS, *SAYS.of("one step"), _of(lambda c, f: f.days * c["batch"] / c["tokens"], "step")),
    Idea(COST, *SAYS.of("of one GPU"), _of(lambda c, f: f.cost / f.gpus, "one")),
    Idea(COST, *SAYS.of("a price a day"), _of(lambda c, f: f.cost / 24, "day")),
    Idea(
        COST,
        *SAYS.of("up to the deadline"),
        _of(lambda c, f: 24 * c["days"] * f.hourly, "deadline"),
    ),
)
CASES = Cases(KEYS, 15, make, right, IDEAS)


def judge_cheapest(answer: Answer, judge: Judge) -> None:
    judge_cases(answer, judge, CASES, __name__)


CHEAPEST_PLAN = Exercise(judge=judge_cheapest, **SAYS.about)
