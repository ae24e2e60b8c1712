"""`gelu_counterexample` of lesson 04: why the first weight of an MLP is not cut by rows.

Any pair is tried by computing; only then are the four values looked at. What each wrong idea about
GELU would give follows from the learner's own pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product

from course_lib.classroom.checks.thought import Mistake, Thought, close, compare, named
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_04/gelu_counterexample")
PAIR = ("a", "b")
VALUES = ("GELU(a) + GELU(b)", "GELU(a + b)", "ReLU(a) + ReLU(b)", "ReLU(a + b)")
Bend = Callable[[float], float]


def distribution(x: float) -> float:
    """The part of a standard normal that lies below x."""
    return (1 + math.erf(x / math.sqrt(2))) / 2


def gelu(x: float) -> float:
    return x * distribution(x)


def relu(x: float) -> float:
    return max(x, 0.0)


def judge_gelu(given: Mapping) -> None:
    """First whether the pair is what is asked for, then whether its values are."""
    a, b = (given[name] for name in PAIR)
    _refuse_equal(a, b)
    _refuse_larger(a, b)
    values = {name: given[name] for name in VALUES}
    nearest = sorted(_mistakes(a, b), key=lambda idea: _away(values, idea.values))
    compare(values, _values(a, b), tuple(nearest))


def _away(given: Mapping, idea: Mapping) -> float:
    """How far an idea's first value is from the one that was given: some are nearly equal."""
    return abs(given[VALUES[0]] - idea.get(VALUES[0], math.inf))


def _values(a: float, b: float, bend: Bend = gelu, other: Bend = relu) -> dict[str, float]:
    """The four values, had GELU and ReLU been these functions."""
    sides = [side for f in (bend, other) for side in (f(a) + f(b), f(a + b))]
    return dict(zip(VALUES, sides, strict=True))


def _refuse_equal(a: float, b: float) -> None:
    """A Finding where one of the two functions gives the same on both sides."""
    if abs(a) > 1e3 or abs(b) > 1e3:
        raise SAYS("far out")
    if a == 0 or b == 0:
        raise SAYS("zero")
    apart = abs(gelu(a) + gelu(b) - gelu(a + b))
    if apart < 0.01 * max(abs(gelu(a + b)), 1e-3):
        side = "GELU(x) is nearly x" if a > 0 else "GELU(x) is nearly 0"
        raise SAYS("straight part", side=side)
    if relu(a) + relu(b) == relu(a + b):
        raise SAYS("same sign")


def _refuse_larger(a: float, b: float) -> None:
    """A Finding where the pair is a counterexample, but another one than the smallest."""
    if a != round(a) or b != round(b):
        raise SAYS("not whole")
    least = min(  # of all whole numbers for which both functions differ, by trying them
        abs(a) + abs(b)
        for a, b in product(range(-3, 4), repeat=2)
        if not close(gelu(a) + gelu(b), gelu(a + b)) and relu(a) + relu(b) != relu(a + b)
    )
    if abs(a) + abs(b) > least:
        raise SAYS("not the smallest", size=abs(a) + abs(b))


def _mistakes(a: float, b: float) -> tuple[Mistake, ...]:
    """What each wrong idea gives for this pair: another function for GELU, or for ReLU."""
    gelus, relus = _values(a, b), _values(a, b, relu)
    (left, right), (low, high) = VALUES[:2], VALUES[2:]
    other = {left: right, right: left, low: high, high: low}
    bends: dict[str, Bend] = {
        "taken for odd": lambda x: math.copysign(gelu(abs(x)), x),
        "ReLU's values": relu,
        "cut off below zero": lambda x: relu(gelu(x)),
        "√2 left out": lambda x: x * (1 + math.erf(x)) / 2,
        "an approximation": lambda x: x / (1 + math.exp(-1.702 * x)),
        "SiLU's values": lambda x: x / (1 + math.exp(-x)),
        "the distribution alone": distribution,
    }
    ideas = {entry: _values(a, b, bend) for entry, bend in bends.items()} | {
        "absolute values": _values(a, b, gelu, abs),
        "equal sides": {left: gelus[right], low: relus[high]},
        "sides exchanged": {name: gelus[other[name]] for name in VALUES},
    }
    return named(SAYS, ideas)


GELU = Thought(fields=(*PAIR, *VALUES), judge=judge_gelu, **SAYS.about)
