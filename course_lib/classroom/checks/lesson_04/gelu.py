"""`gelu_counterexample` of lesson 04: why the first weight of an MLP is not cut by rows.

Any pair is tried by computing; only then are the four values looked at. What each wrong idea about
GELU would give follows from the learner's own pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product

from course_lib.classroom.checks.thought import Mistake, Thought, close, compare
from course_lib.classroom.checks.words import Words

SAYS = Words("""
far out: Numbers of that size are no smallest example: stay near zero.
zero: One of your two numbers is zero, and there the two sides are equal: GELU(0) is 0, so a rank
  whose part is zero adds nothing, before or after. Both parts have to matter.
straight part: With these two the sides of GELU differ by less than a hundredth: so far out {side},
  a straight line, and a straight line may be taken before the sum or after it. Look where the
  function is curved.
same sign: For GELU that is a counterexample, for ReLU it is none: two numbers of the same sign are
  on the same straight piece of ReLU. The pair has to show it for both functions.
not whole: It is a counterexample; asked for are whole numbers, like 7 and -4.
not the smallest: It is a counterexample. |a| + |b| is {size:g}; there is one with less.
taken for odd: You have used GELU(-x) = -GELU(x). GELU nearly vanishes on one side of zero alone.
ReLU's values: Those are ReLU's values. GELU is x times the part of a standard normal below x:
  smaller than x for a positive number, and not zero for a negative one.
cut off below zero: You have let GELU of a negative number be zero. It is small and negative there:
  x times the part of a standard normal below x.
√2 left out: P(x) is (1 + erf(x / √2)) / 2. Without the √2 it is another distribution's.
an approximation: x · sigmoid(1.702 x) is an approximation of GELU, and differs in the second digit.
absolute values: ReLU(x) is 0 for a negative x; that is |x|.
SiLU's values: That is x · sigmoid(x), which is SiLU, the activation function in SwiGLU. GELU has
  the normal distribution in the sigmoid's place.
the distribution alone: That is the part of a standard normal below x. GELU(x) is x times that.
equal sides: You have the same number on both sides, which would make the pair no counterexample.
  Work each side out by itself.
sides exchanged: The two sides have changed places: to the left each number goes through the
  function alone and the results are added, to the right the numbers are added first.
""")
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
    return tuple(Mistake(*SAYS.of(entry), values) for entry, values in ideas.items())


GELU = Thought(
    name="gelu_counterexample",
    title="The smallest counterexample",
    points=2,
    fields=(*PAIR, *VALUES),
    judge=judge_gelu,
    when_right=(
        "What one rank pushes up, the other pulls down, and only the sum of the two says on which "
        "side of zero the unit is. So a partial sum has to be all-reduced before any function that "
        "is not linear: cut by rows, the first weight of an MLP costs an all-reduce before its "
        "GELU."
    ),
    hints=(
        "For a straight line through zero, such as 3x, both sides are equal for any a and b. ReLU "
        "is such a line on each side of zero: 0 below, x above. So for which a and b are both "
        "sides equal for ReLU, and which pairs are left?",
        "ReLU first, because it can be done in the head: for which signs of a and b does it "
        "matter whether you add before or after?",
        "GELU(x) = x · P(x), where P(x) is the part of a standard normal distribution that is "
        "below x. In Python: `x * (1 + math.erf(x / 2**0.5)) / 2`, or torch's own "
        "`torch.nn.functional.gelu` of a tensor.",
    ),
)
