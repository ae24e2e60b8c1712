"""`five_to_two` of lesson 04: a SwiGLU MLP from its shards, with one all-reduce per direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from course_classroom.judge.frame import Exercise
from course_classroom.judge.layer_looks import Budget, Declared, Gives, Seen
from course_classroom.judge.layers import Layer, Use
from course_classroom.judge.looking import ITEM, THREE, TWO
from course_classroom.judge.words import Page
from course_lib.ledger import forms

SAYS = Page(__file__, "five_to_two")
ONE = {"all_reduce": 1}
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
    """Return sizes in which 2 and 3 divide b·s·h, so that the budget is an integer for any f."""
    return {"b": 5, "s": 8, "h": 6, "f": f}


def outputs(c: Seen) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield the output of each wrong idea about the forward pass."""
    n, (x, gate, up, down, bias) = c.n, c.inputs
    parts = [swiglu(*c.shards(r)[:4], 0 * bias) for r in c.ranks]
    total = torch.stack(parts).sum(0)
    yield "sum left out", [part + bias for part in parts]
    yield "sum left out", parts
    yield "f and g exchanged", [swiglu(n * x, *c.shards(r)[1:]) for r in c.ranks]
    for entry, given in {
        "bias n times": total + n * bias,
        "bias left out": total,
        "bias divided": total + bias / n,
        "summed twice": n * total + bias,
        "mean": total / n + bias,
        "gate and up exchanged": swiglu(x, up, gate, down, bias),
        "activation over the product": F.silu((x @ gate.t()) * (x @ up.t())) @ down.t() + bias,
    }.items():
        yield entry, [given] * n
    for bend in (F.gelu, F.relu, torch.sigmoid):
        yield "wrong activation function", [bend(x @ gate.t()) * (x @ up.t()) @ down.t() + bias] * n


def own(*ways: int) -> Gives:
    """Return the gradient of x if the part through gate (0) or up (1) stays local."""

    def gives(c: Seen, name: str) -> list[Tensor]:
        terms = []  # for each rank: the part through gate, through up
        for rank in c.ranks:
            x, gate, up, down, _ = c.shards(rank)
            leaves = [x.clone().requires_grad_() for _ in range(2)]
            y = F.silu(leaves[0] @ gate.t()) * (leaves[1] @ up.t()) @ down.t()
            terms.append(torch.autograd.grad(y, leaves, c.dy))
        total = [sum(way) for way in zip(*terms, strict=True)]
        return [sum(mine[i] if i in ways else total[i] for i in range(2)) for mine in terms]

    return gives


def times(factor: Callable[[int], float]) -> Gives:
    return lambda c, name: [factor(c.n) * right for right in c.gradients(name)]


def on_some_ranks(c: Seen, name: str) -> list[Tensor | None]:
    """Return the right gradient on ranks that have one, or nothing if all ranks or no ranks do."""
    seen = c.seen(name)
    there = [one is not None and bool(one.any()) for one in seen]
    given = zip(there, seen, c.gradients(name), strict=True)
    return [right if some else one for some, one, right in given] if len(set(there)) > 1 else []


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
        (THREE, sizes(2)),  # with 2 inner units, the last of three ranks has none
    ],
    uses=(
        *(Use(sizes(7)), Use(sizes(7)), Use(sizes(10), "float32")),
        Use(sizes(9) | {"b": 4, "s": 2}, alone=True),
    ),
    outputs=outputs,
    gradients=(
        ("weights left out", "", lambda c, name: [None] * c.n),
        ("f left out", "x", own(0, 1)),
        ("one branch without f", "x", own(1)),
        ("one branch without f", "x", own(0)),
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
                "weights gathered",
                lambda to, _: to.get("all_gather", 0) + to.get("broadcast", 0) > 2,
            ),
            ("one f per product", lambda to, back: to == ONE and back == {"all_reduce": 2}),
            ("gathered in the middle", lambda to, _: {"all_gather", *ONE} <= {*to}),
            ("all-reduce in two halves", lambda *ways: any({*way} >= HALVES for way in ways)),
        ),
    ),
    means={"sequences": "b", "positions": "s", "tokens": "b s"},
)
FIVE_TO_TWO = Exercise(judge=FIVE.judge, **SAYS.about)
