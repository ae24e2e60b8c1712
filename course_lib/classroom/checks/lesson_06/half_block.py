"""`sequence_mlp` of lesson 06: half a block whose tokens are sharded, within a budget.

Declared: the interface, the dense half block, lengths that divide and that do not, what each wrong
idea gives, and a budget of messages, bytes and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.layer_looks import Budget, Declared, Seen
from course_lib.classroom.checks.layers import Layer, Use
from course_lib.classroom.checks.looking import ITEM, THREE, TWO
from course_lib.classroom.checks.words import Page
from course_lib.layout import cut
from course_lib.ledger import forms

PAIR = {"all_gather": 1, "reduce_scatter": 1}
AGAIN = {"all_gather": 2, "reduce_scatter": 1}
EPSILON = 1e-5
SAYS = Page("lesson_06/sequence_mlp")


def half(x: Tensor, weight: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
    normed = F.rms_norm(x, x.shape[-1:], weight, EPSILON)
    return x + F.gelu(normed @ up.t()) @ down.t() + bias


def tokens(s: int, n: int) -> list[int]:
    """How many each rank has: not as `cut` has it, where they differ, and no rank without."""
    return cut(s, n)[::-1]


def drawn(name: str, tensor: Tensor) -> Tensor:
    if name == "x":
        tensor[:, 0] *= 0.01  # so small a token that the norm's 1e-5 is seen
    return tensor


LAYER = Layer(
    text="x[b, s@tp, h] weight[h] up[f@tp, h] down[h, f@tp] bias[h] -> y[b, s@tp, h]",
    dense=half,
    grows={"s": 1},
    shares={"s": tokens},
    also=lambda sizes, n: (tokens(sizes["s"], n),),
    drawn=drawn,
    counts_wide=True,
)


def outputs(c: Seen) -> Iterator[tuple[str, list[Tensor]]]:
    """What each wrong idea about the forward gives."""
    n, (x, weight, up, down, bias) = c.n, c.inputs
    whole, normed = c.steps[0][0], normed_of(c)

    def block(normed: Tensor, bend: Callable[[Tensor], Tensor] = F.gelu) -> list[Tensor]:
        return c.cut("y", x + bend(normed @ up.t()) @ down.t() + bias)

    yield "bias n times", c.cut("y", whole + (n - 1) * bias)
    yield "bias left out", c.cut("y", whole - bias)
    yield "residual n times", c.cut("y", whole + (n - 1) * x)
    yield "residual left out", c.cut("y", whole - x)
    yield "mean", c.cut("y", x + (whole - x - bias) / n + bias)
    mine = [(c.part("x", x, r), c.part("x", normed, r), *c.shards(r)[2:4]) for r in c.ranks]
    yield "own columns alone", [x + F.gelu(z @ a.t()) @ b.t() + bias for x, z, a, b in mine]
    yield "norm left out", block(x)
    yield "weight left out", block(normed / weight)
    for epsilon in (0, 1e-8, 1e-6, 1e-4, torch.finfo(x.dtype).eps):
        yield "another epsilon", block(F.rms_norm(x, x.shape[-1:], weight, epsilon))
    yield "another norm", block(F.layer_norm(x, x.shape[-1:], weight, None, EPSILON))
    yield "activation left out", block(normed, lambda wide: wide)
    yield "GELU by tanh", block(normed, lambda wide: F.gelu(wide, approximate="tanh"))
    yield "activation after the sum", c.cut("y", x + F.gelu(normed @ up.t() @ down.t()) + bias)
    yield "residual normed", c.cut("y", whole - x + normed)


def normed_of(c: Seen) -> Tensor:
    x, weight = c.inputs[:2]
    return F.rms_norm(x, x.shape[-1:], weight, EPSILON)


def through(c: Seen, rank: int) -> Tensor:
    """The part of the norm's output's gradient that comes back by this rank's columns."""
    normed, (up, down) = normed_of(c).requires_grad_(), c.shards(rank)[2:4]
    return torch.autograd.grad(F.gelu(normed @ up.t()) @ down.t(), normed, c.dy)[0]


def split_not_summed(c: Seen, name: str) -> list[Tensor]:
    """x's gradient after the other backward of a gather."""
    given = []
    for rank in c.ranks:
        leaf = c.shards(rank)[0].clone().requires_grad_()
        normed = F.rms_norm(leaf, leaf.shape[-1:], c.inputs[1], EPSILON)
        (back,) = torch.autograd.grad(normed, leaf, c.part("x", through(c, rank), rank))
        given.append(back + c.part("y", c.dy, rank))
    return given


def of_own_tokens(c: Seen, name: str) -> list[Tensor]:
    """The gradient of weight or bias from each rank's own tokens."""
    terms = c.dy
    if name == "weight":
        terms = sum(through(c, rank) for rank in c.ranks) * normed_of(c) / c.inputs[1]
    return [part.sum((0, 1)) for part in c.cut("y", terms)]


def most(c: Seen, rank: int, back: Mapping[str, int]) -> tuple[float, float]:
    """A move carries tokens as wide as x; the sums carry weight and bias."""
    b, s, h = (c.sizes[dim] for dim in "bsh")
    row, own = b * h * ITEM, tokens(s, c.n)[rank]
    gather, scatter = (c.n - 1) * own * row, (s - own) * row
    sums = forms.all_reduce(c.n, 2 * h * ITEM)
    return gather + scatter, back["all_gather"] * gather + scatter + sums


DECLARED = Declared(
    module=__name__,
    layer=LAYER,
    says=SAYS,
    owed="the output for its own tokens",
    cases=lambda seed: [
        (THREE, {"b": 2, "s": 7, "h": 5, "f": 10}),
        (TWO, {"b": 3, "s": 5, "h": 8, "f": 7}),
        (THREE, {"b": 4, "s": 6, "h": 9, "f": 8}),
    ],
    uses=(
        *[Use({"b": 2, "s": 7, "h": 5, "f": 10})] * 2,
        Use({"b": 4, "s": 5, "h": 6, "f": 9}, alone=True),
        Use({"b": 2, "s": 8, "h": 5, "f": 7}, "float32"),
    ),
    outputs=outputs,
    gradients=(
        ("no way back", "up", lambda c, name: [None] * c.n),
        ("no way back", "down", lambda c, name: [None] * c.n),
        ("the other backward of a gather", "x", split_not_summed),
        (
            "no way back by the residual",
            "x",
            lambda c, name: c.cut("x", c.steps[0][1]["x"] - c.dy),
        ),
        ("a copy's debt", "weight", of_own_tokens),
        ("a copy's debt", "bias", of_own_tokens),
        ("n times", "", lambda c, name: [c.n * right for right in c.gradients(name)]),
        ("divided by n", "", lambda c, name: [right / c.n for right in c.gradients(name)]),
    ),
    budget=Budget(
        forward=[PAIR],
        backward=[PAIR, AGAIN],
        beside={"all_reduce": 2},
        most=most,
        wirings=(
            (
                "all-reduce, then cut",
                lambda there, back: "all_reduce" in there and "reduce_scatter" not in there,
            ),
            ("gathered twice", lambda there, back: there.get("all_gather", 0) > 1),
            (
                "scattered twice",
                lambda there, back: there == PAIR and back.get("reduce_scatter", 0) > 1,
            ),
        ),
    ),
    means={"sequences": "b", "tokens": "s", "elements of a token": "h"},
    whole="all tokens",
    named={"two at once": "another second step"},
    kept="all tokens kept",
)
SEQUENCE_MLP = Exercise(judge=DECLARED.judge, **SAYS.about)
