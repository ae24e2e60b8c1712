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
from course_lib.classroom.checks.words import Page
from course_lib.ledger import forms

SAYS = Page("lesson_04/five_to_two")
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
FIVE_TO_TWO = Exercise(judge=FIVE.judge, **SAYS.about)
