"""`gelu_counterexample` of lesson 04: why the first weight of an MLP is not cut by rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product

from course_classroom.judge.thought import Thought, close, compare, named
from course_classroom.judge.words import Page

SAYS = Page(__file__, "gelu_counterexample")
PAIR = ("a", "b")
VALUES = ("GELU(a) + GELU(b)", "GELU(a + b)", "ReLU(a) + ReLU(b)", "ReLU(a + b)")
Bend = Callable[[float], float]


def distribution(x: float) -> float:
    """Return the fraction of a standard normal distribution below x."""
    return (1 + math.erf(x / math.sqrt(2))) / 2


def gelu(x: float) -> float:
    return x * distribution(x)


def relu(x: float) -> float:
    return max(x, 0.0)


BENDS: dict[str, Bend] = {  # the function that each wrong idea uses for GELU
    "GELU taken as odd": lambda x: math.copysign(gelu(abs(x)), x),
    "ReLU's values": relu,
    "cut off below zero": lambda x: relu(gelu(x)),
    "√2 left out": lambda x: x * (1 + math.erf(x)) / 2,
    "an approximation": lambda x: x / (1 + math.exp(-1.702 * x)),
    "SiLU's values": lambda x: x / (1 + math.exp(-x)),
    "only the distribution": distribution,
}
SMALLEST = min(  # over all integers for which both functions differ, by trying them
    abs(a) + abs(b)
    for a, b in product(range(-3, 4), repeat=2)
    if not close(gelu(a) + gelu(b), gelu(a + b)) and relu(a) + relu(b) != relu(a + b)
)


def judge_gelu(given: Mapping) -> None:
    """Check the pair of numbers first, then the four values."""
    a, b = (given[name] for name in PAIR)

    def values(bend: Bend = gelu, other: Bend = relu) -> dict[str, float]:
        """Return the four values, with `bend` in place of GELU and `other` in place of ReLU."""
        sides = [side for f in (bend, other) for side in (f(a) + f(b), f(a + b))]
        return dict(zip(VALUES, sides, strict=True))

    right, size = values(), abs(a) + abs(b)
    left, whole, low, high = right.values()
    holds = {
        "too far from zero": max(abs(a), abs(b)) > 1e3,
        "zero": a == 0 or b == 0,
        "straight part": abs(left - whole) < 0.01 * max(abs(whole), 1e-3),
        "same sign": low == high,
        "not integers": a != round(a) or b != round(b),
        "not the smallest": size > SMALLEST,
    }
    SAYS.refuse(holds, side=f"GELU(x) is nearly {'x' if a > 0 else 0}", size=size)
    ideas = {entry: values(bend) for entry, bend in BENDS.items()} | {
        "absolute values": values(gelu, abs),
        "equal sides": {VALUES[0]: whole, VALUES[2]: high},
        "sides exchanged": dict(zip(VALUES, (whole, left, high, low), strict=True)),
    }
    nearest = sorted(  # some are nearly equal
        named(SAYS, ideas),
        key=lambda idea: abs(given[VALUES[0]] - idea.values.get(VALUES[0], math.inf)),
    )
    compare({name: given[name] for name in VALUES}, right, tuple(nearest))


GELU = Thought(fields=(*PAIR, *VALUES), judge=judge_gelu, **SAYS.about)
