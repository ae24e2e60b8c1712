"""`cheapest_plan` of lesson 15: the machine, number of GPUs and stage of the cheapest plan in time.

One counting model, `cheapest_ways.py`, gives the right answer and the wrong ideas' answers.
"""

from __future__ import annotations

from random import Random

from course_classroom.judge.answer import Answer
from course_classroom.judge.by_cases import AnyOf, Case, Cases, Idea, judge_cases
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge
from course_classroom.judge.words import Page
from course_lessons.lesson_15.cheapest_ways import DAY, Found, cheapest, considered, held, ways

SAYS = Page(__file__, "cheapest_plan")

CHOICE, DAYS, COST = KEYS = ("choice", "days", "cost")
AT_THE_BORDER = 2  # the index of the case whose plan fits exactly and ends exactly in time
SMALL = {1: 3.9, 3: 1.95}  # bytes per parameter, in every fourth case: stage 2 fits, or stage 3


def make(r: Random, k: int) -> Case:
    """Draw a case whose cheapest plan is clearly cheaper than any other."""
    while True:
        case = _drawn(r, k)
        costs = sorted(way.cost for way in ways(case) if way.days <= case["days"])
        if len(costs) < 2 or costs[1] > (1 + 1e-4) * costs[0]:
            return case


def _at_the_border(r: Random) -> Case:
    """Draw a case whose cheapest plan fills the memory exactly and ends exactly in time, with
    numbers that are exact in any order of operations, in bytes and in GB."""
    n, stage, days = 8, r.choice((1, 2)), r.choice((16, 24, 32))
    params, batch = 675 * 10**7, 2**24
    flops = 6.0 * params * batch / (n * 675)  # a step takes 675 s, so 128 per day
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
        first = r.choice((4, 6, 8))  # each kind of GPU in its own numbers, in any order
        # Close neighbours: the smaller number may need stage 3 where the larger has stage 2.
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
    if k % 4 in SMALL:  # small GPUs on slow links: only one stage fits, with visible messages
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
    """Return a function that computes a key's value for the right plan, or None without a plan."""

    def gives(case: Case) -> object:
        found = cheapest(case)
        return None if found is None else number(case, found)

    gives.__name__ = name
    return gives


_READINGS = (
    ("the deadline forgotten", "Some of your choices do not end in time.", {"late": True}),
    (
        "the fastest",
        "That is the fastest one that fits, but the question asks for the cheapest in time.",
        {"by": "days"},
    ),
    (
        "the cheapest hour",
        "That has the lowest price per hour, but it also takes longest.",
        {"by": "hourly"},
    ),
    ("gradients forgotten", "Gradients take 2 bytes per parameter too.", {"gradients": 0}),
    ("gradients in 32 bits", "Here, gradients have 2 bytes per parameter.", {"gradients": 4}),
    (
        "nothing is sent",
        "Messages take time: the part that is longer than the backward is exposed.",
        {"sends": 0.0},
    ),
    (
        "nothing hides",
        "Messages overlap with the backward, two thirds of the computation. Only the rest is "
        "exposed.",
        {"hides": 0.0},
    ),
    ("parameters, not bytes", "A parameter has 2 bytes on the link.", {"sends": 0.5}),
    (
        "stage 3 always",
        "Stage 3 sends 1.5 times as much. Use it only if no lower stage fits.",
        {"stages": (3,)},
    ),
    (
        "no stage 0",
        "A model that fits without ZeRO needs no stage, so the lowest one is 0.",
        {"stages": (1, 2, 3)},
    ),
    ("no stage 3", "If stage 2 does not fit, stage 3 may.", {"stages": (0, 1, 2)}),
    (
        "activations forgotten",
        "Activations need memory in addition to weights, gradients and states.",
        {"active": 0.0},
    ),
    (
        "activations shared out",
        "Each GPU has these activations. They are not divided by N.",
        {"spread": -1.0},
    ),
    ("activations of all", "`activations` are the bytes on each GPU.", {"spread": 1.0}),
    (
        "states of 8 bytes",
        "States have 12 bytes per parameter: a float32 copy and two moments.",
        {"states": 8},
    ),
    ("the first in time", "A later one of the plans that are in time costs less.", {"by": "first"}),
    (
        "the first size in time",
        "For each machine, you ignore all sizes after the first that is in time. A later one may "
        "cost less, because sizes are in any order.",
        {"one": "first"},
    ),
    (
        "the fewest in time",
        "For each machine, you take the smallest number that is in time. A larger one may cost "
        "less, because it may fit at a stage that sends less.",
        {"one": "fewest"},
    ),
    (
        "what fits exactly",
        "A plan that uses all of the memory, to the last byte, fits.",
        {"full": False},
    ),
    (
        "what is done exactly in time",
        "A plan that takes exactly `days` is in time.",
        {"exact": False},
    ),
    (
        "the first machine with a plan",
        "You ignore all machines after the first that has a plan in time. A later one may cost "
        "less.",
        {"one": "machine"},
    ),
    ("of one GPU", "The price is for one GPU, but all of them run.", {"by": "single"}),
    (
        "all of it hides",
        "Messages overlap with the backward, which is only two thirds of the computation.",
        {"hides": 1.0},
    ),
    (
        "a third hides",
        "The backward is two thirds of the computation; the forward is one third.",
        {"hides": 1 / 3},
    ),
    ("memory forgotten", "Some of your choices do not fit on a GPU.", {"fits": False}),
    ("one GPU computes", "N GPUs share the computation of a step.", {"share": False}),
)


def _reading(how: dict):
    """Return an idea's choices; without messages, all sizes of a machine may cost the same."""
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
    Idea(
        DAYS,
        *SAYS.of("only one step checked"),
        _of(lambda c, f: f.days * c["batch"] / c["tokens"], "step"),
    ),
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
