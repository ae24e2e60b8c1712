"""`five_to_two` of lesson 04: a SwiGLU MLP from its shards, one all-reduce in each direction.

Declared: the interface, the dense layer, sizes that divide and uneven ones, what each wrong idea
gives, and a budget of messages and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.layer_looks import Budget, Declared, Gives, Seen
from course_lib.classroom.checks.layers import Layer, Use
from course_lib.classroom.checks.looking import ITEM, THREE, TWO
from course_lib.classroom.checks.words import Words
from course_lib.ledger import forms

SAYS = Words("""
sum left out #1: Each rank has its own term of the output. The terms were not added up: an
  all-reduce is missing.
sum left out #2: Each rank has its own term of the output, without the bias. The terms have to be
  summed.
bias n times: The bias was added {n} times: every rank added it before the sum.
bias left out: The bias is missing.
bias divided: Only 1/{n} of the bias is in it. After the sum there is one output, and the bias is
  added to it once, undivided.
summed twice: The sum is {n} times too large: it was summed, and the sum was summed again.
mean: That is the mean of the ranks' terms: the sum, divided by {n}. The terms add up.
gate and up exchanged: SiLU was applied to up; it belongs on gate.
f and g exchanged: x was summed on its way in, and the output was not. x is replicated; what is
  partial, and has to be summed, is the output.
another bend: The activation function of this MLP is SiLU, x · sigmoid(x).
bend over both: SiLU is applied to gate alone; up is multiplied afterwards.
not on every rank: The output is right on rank {ranks} alone, {when}; the next layer needs it on
  every rank.
weights left out: It is None: this tensor was detached, or copied without history.
f left out: Each rank has the term that came back through its own shards. x went to all ranks, so
  its gradient is the sum of all their terms.
one branch without f #1: What comes back by gate is summed over the ranks, what comes back by up is
  each rank's own. Both read x.
one branch without f #2: What comes back by up is summed over the ranks, what comes back by gate is
  each rank's own. Both read x.
f twice: It is {n} times too large: it was summed twice on its way.
sum of equal gradients: They are {n} times too large: the gradient of the sum is the same on every
  rank, and was summed once more. The backward of g sends nothing.
bias in n parts: It is {n} times too small: each rank added a part of the bias before the sum. The
  bias is replicated, and would learn at another speed.
f on the bias: It is {n} times too large: equal gradients were summed.
bias on one rank: Only some ranks get one: the bias was added there, before the sum. The other
  ranks' copies would not move, and after a step the ranks hold different biases.
weights on the way: Gathered were the weights, so that every rank computes the whole MLP: nothing is
  saved by the cut. The weights stay where they are.
one f per product: Each of the two products has an f of its own, and each f sums a gradient of x.
  Sums may be joined: add first, then send once.
gathered in the middle: What is gathered is taken apart again right after: `down` wants exactly the
  pieces that the ranks have.
all-reduce in two halves: A reduce-scatter and an all-gather move as many bytes as one all-reduce,
  and cost the α's of two calls. Where nothing stands between them, call it once.
more than Φ: One all-reduce in each direction, but of more than Φ elements: {forward} bytes forward
  and {backward} backward, and the budget is {most_forward:g} each. What is summed need not be wider
  than x.
""")
ONE = {"all_reduce": 1}
TWICE = {"all_reduce": 2}
HALVES = {"reduce_scatter", "all_gather"}


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
    return F.silu(x @ gate.t()) * (x @ up.t()) @ down.t() + bias


LAYER = Layer(
    text="x[b, s, h] gate[f@tp, h] up[f@tp, h] down[h, f@tp] bias[h] -> y[b, s, h]",
    dense=swiglu,
    grows={"b": -1},
    rate=0.01,
)


def sizes(f: int) -> dict[str, int]:
    """b·s·h divides by 2 and 3, so that the budget is a whole number; f need not."""
    return {"b": 5, "s": 8, "h": 6, "f": f}


def outputs(c: Seen) -> Iterator[tuple[str, list[Tensor]]]:
    """What each wrong idea about the forward gives."""
    n, (x, gate, up, down, bias) = c.n, c.inputs
    parts = [swiglu(*c.shards(r)[:4], 0 * bias) for r in c.ranks]
    total = torch.stack(parts).sum(0)
    yield "sum left out #1", [part + bias for part in parts]
    yield "sum left out #2", parts
    yield "bias n times", [total + n * bias] * n
    yield "bias left out", [total] * n
    yield "bias divided", [total + bias / n] * n
    yield "summed twice", [n * total + bias] * n
    yield "mean", [total / n + bias] * n
    yield "gate and up exchanged", [swiglu(x, up, gate, down, bias)] * n
    yield "f and g exchanged", [swiglu(n * x, *c.shards(r)[1:]) for r in c.ranks]
    for bend in (F.gelu, F.relu, torch.sigmoid):
        yield "another bend", [bend(x @ gate.t()) * (x @ up.t()) @ down.t() + bias] * n
    yield "bend over both", [F.silu((x @ gate.t()) * (x @ up.t())) @ down.t() + bias] * n


def through(c: Seen, summed: tuple[bool, bool]) -> list[Tensor]:
    """x's gradient on each rank, where what comes back by gate, by up is summed over the ranks."""
    ways = []
    for way in range(2):
        terms = []
        for rank in c.ranks:
            x, gate, up, down, _ = c.shards(rank)
            leaves = [x.clone().requires_grad_() for _ in range(2)]
            y = F.silu(leaves[0] @ gate.t()) * (leaves[1] @ up.t()) @ down.t()
            terms.append(torch.autograd.grad(y, leaves, c.dy)[way])
        total = torch.stack(terms).sum(0)
        ways.append([total if summed[way] else term for term in terms])
    return [by_gate + by_up for by_gate, by_up in zip(*ways, strict=True)]


def times(factor: Callable[[int], float]) -> Gives:
    return lambda c, name: [factor(c.n) * right for right in c.gradients(name)]


def on_some_ranks(c: Seen, name: str) -> list[Tensor | None]:
    """The right one where there is any; none at all where every rank has one, or none has."""
    there = [one is not None and bool(one.any()) for one in c.seen(name)]
    given = zip(there, c.seen(name), c.gradients(name), strict=True)
    return [right if some else seen for some, seen, right in given] if len(set(there)) > 1 else []


def most(c: Seen, rank: int, back: dict) -> tuple[float, float]:
    fair = forms.all_reduce(c.n, prod(c.sizes[dim] for dim in "bsh") * ITEM)
    return fair, fair


FIVE = Declared(
    module=__name__,
    layer=LAYER,
    says=SAYS,
    owed="the MLP's output",
    cases=lambda seed: [
        (THREE, sizes(9 + seed % 3 * 3)),
        (TWO, sizes(7 + seed % 3 * 2)),
        (THREE, sizes(2)),  # of 2 inner units the last of three ranks has none
    ],
    uses=(
        *(Use(sizes(7)), Use(sizes(7)), Use(sizes(10), "float32")),
        Use(sizes(9) | {"b": 4, "s": 2}, alone=True),
    ),
    outputs=outputs,
    gradients=(
        ("weights left out", "", lambda c, name: [None] * c.n),
        ("f left out", "x", lambda c, name: through(c, (False, False))),
        ("one branch without f #1", "x", lambda c, name: through(c, (True, False))),
        ("one branch without f #2", "x", lambda c, name: through(c, (False, True))),
        ("sum of equal gradients", "x gate up down", times(lambda n: n)),
        ("f twice", "x", times(lambda n: n)),
        ("bias in n parts", "bias", times(lambda n: 1 / n)),
        ("f on the bias", "bias", times(lambda n: n)),
        ("bias on one rank", "bias", on_some_ranks),
    ),
    budget=Budget(
        forward=[ONE],
        backward=[ONE],
        most=most,
        more="more than Φ",
        wirings=(
            (
                "weights on the way",
                lambda there, back: there.get("all_gather", 0) + there.get("broadcast", 0) >= 3,
            ),
            ("one f per product", lambda there, back: back == TWICE and there == ONE),
            ("gathered in the middle", lambda there, back: {"all_gather", *ONE} <= set(there)),
            (
                "all-reduce in two halves",
                lambda there, back: set(there) >= HALVES or set(back) >= HALVES,
            ),
        ),
    ),
    means={"sequences": "b", "positions": "s", "tokens": "b s"},
)
FIVE_TO_TWO = Exercise(
    name="five_to_two",
    title="From five collectives to two",
    points=4,
    judge=FIVE.judge,
    when_right=(
        "Output, all five gradients and two steps of training are those of the dense MLP, on two "
        "ranks and on three, for an inner size that divides and one that does not. One all-reduce "
        "of Φ forward and one backward: 4Φ(n−1)/n elements, however wide the MLP is inside."
    ),
    hints=(
        "Go through the wiring and write its layout in the notation beside each line. Where does "
        "a message bring together what the next line takes apart again?",
        "SiLU and the product of gate and up act on each number alone. On which layout can they "
        "work, and which layout does `down` want?",
        "In the backward: two products read x. Each gives a term of x's gradient. What if x passed "
        "one f, and both products read what comes out of it?",
        "The bias is the same on every rank. In which place does each output get it once, and its "
        "gradient come out complete on every rank without a message?",
    ),
)
