"""`sequence_mlp` of lesson 06: half a block whose tokens are sharded, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from course_classroom.judge.frame import Exercise
from course_classroom.judge.layer_looks import Budget, Declared, Gives, Seen
from course_classroom.judge.layers import Layer, Use
from course_classroom.judge.looking import ITEM, THREE, TWO
from course_classroom.judge.words import Page
from course_lib.layout import cut
from course_lib.ledger import forms

PAIR = {"all_gather": 1, "reduce_scatter": 1}
AGAIN = {"all_gather": 2, "reduce_scatter": 1}
SUMS = {"all_reduce", "reduce_scatter"}
EPSILON = 1e-5
SAYS = Page(__file__, "sequence_mlp")


def norm(x: Tensor, weight: Tensor, epsilon: float = EPSILON) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, epsilon)


def half(x: Tensor, weight: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
    return x + F.gelu(norm(x, weight) @ up.t()) @ down.t() + bias


def tokens(s: int, n: int) -> list[int]:
    """Return each rank's number of tokens; uneven counts are in a different order than `cut`."""
    first, *others = cut(s, n)
    return [*others, first]


LAYER = Layer(
    text="x[b, s@tp, h] weight[h] up[f@tp, h] down[h, f@tp] bias[h] -> y[b, s@tp, h]",
    dense=half,
    grows={"s": 1},
    shares={"s": tokens},
    also=lambda sizes, n: (tokens(sizes["s"], n),),
    # The first token is small enough for the norm's 1e-5 to have an effect.
    drawn=lambda name, t: torch.cat((t[:, :1] / 100, t[:, 1:]), 1) if name == "x" else t,
    counts_wide=True,
)


def outputs(c: Seen) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield the output of each wrong idea about the forward pass."""
    n, (x, weight, up, down, bias) = c.n, c.inputs
    whole, normed = c.steps[0][0], norm(x, weight)

    def block(normed: Tensor, bend: Callable[[Tensor], Tensor] = F.gelu) -> Tensor:
        return x + bend(normed @ up.t()) @ down.t() + bias

    mine = [(c.part("x", x, r), c.part("x", normed, r), *c.shards(r)[2:4]) for r in c.ranks]
    yield "only own columns", [x + F.gelu(z @ a.t()) @ b.t() + bias for x, z, a, b in mine]
    ideas = {
        "bias n times": whole + (n - 1) * bias,
        "bias left out": whole - bias,
        "residual n times": whole + (n - 1) * x,
        "residual left out": whole - x,
        "mean": x + (whole - x - bias) / n + bias,
        "norm left out": block(x),
        "weight left out": block(normed / weight),
        "a different norm": block(F.layer_norm(x, x.shape[-1:], weight, None, EPSILON)),
        "activation left out": block(normed, lambda wide: wide),
        "GELU by tanh": block(normed, lambda wide: F.gelu(wide, approximate="tanh")),
        "activation after the sum": x + F.gelu(normed @ up.t() @ down.t()) + bias,
        "residual normed": whole - x + normed,
    }
    others = (0, 1e-8, 1e-6, 1e-4, torch.finfo(x.dtype).eps)
    epsilons = [("wrong epsilon", block(norm(x, weight, other))) for other in others]
    for entry, given in (*ideas.items(), *epsilons):
        yield entry, c.cut("y", given)


def through(c: Seen, rank: int) -> Tensor:
    """Return the part of the norm output's gradient from this rank's columns."""
    normed, (up, down) = norm(*c.inputs[:2]).requires_grad_(), c.shards(rank)[2:4]
    return torch.autograd.grad(F.gelu(normed @ up.t()) @ down.t(), normed, c.dy)[0]


def split_not_summed(c: Seen, name: str) -> list[Tensor]:
    """Return x's gradient if the gather's backward pass splits instead of summing."""
    given = []
    for rank in c.ranks:
        leaf = c.shards(rank)[0].clone().requires_grad_()
        normed, split = norm(leaf, c.inputs[1]), c.part("x", through(c, rank), rank)
        given.append(torch.autograd.grad(normed, leaf, split)[0] + c.part("y", c.dy, rank))
    return given


def without_residual(c: Seen, name: str) -> list[Tensor]:
    return c.cut(name, c.steps[0][1][name] - c.dy)


def of_own_tokens(c: Seen, name: str) -> list[Tensor]:
    """Return the gradient of weight or bias that comes only from each rank's own tokens."""
    terms = c.dy
    if name == "weight":
        terms = sum(through(c, rank) for rank in c.ranks) * norm(*c.inputs[:2]) / c.inputs[1]
    return [part.sum((0, 1)) for part in c.cut("y", terms)]


def times(factor: Callable[[int], float]) -> Gives:
    return lambda c, name: [factor(c.n) * right for right in c.gradients(name)]


def most(c: Seen, rank: int, back: Mapping[str, int]) -> tuple[float, float]:
    """Return the budget: a move carries tokens as wide as x, and sums carry weight and bias."""
    b, s, h = (c.sizes[dim] for dim in "bsh")
    row, own = b * h * ITEM, tokens(s, c.n)[rank]
    gather, scatter = (c.n - 1) * own * row, (s - own) * row
    sums = forms.all_reduce(c.n, 2 * h * ITEM)
    return gather + scatter, back["all_gather"] * gather + scatter + sums


FIRST = {"b": 2, "s": 7, "h": 5, "f": 10}
SEQUENCE_MLP = Exercise(
    judge=Declared(
        module=__name__,
        layer=LAYER,
        says=SAYS,
        owed="the output for its own tokens",
        cases=lambda seed: [
            (THREE, FIRST),
            (TWO, {"b": 3, "s": 5, "h": 8, "f": 7}),
            (THREE, {"b": 4, "s": 6, "h": 9, "f": 8}),
            (THREE, {"b": 4, "s": 2, "h": 9, "f": 8}),  # a rank without tokens
        ],
        uses=(
            *[Use(FIRST)] * 2,
            Use({"b": 4, "s": 5, "h": 6, "f": 9}, alone=True),
            Use({"b": 2, "s": 8, "h": 5, "f": 7}, "float32"),
        ),
        outputs=outputs,
        gradients=(
            ("no gradient", "up", lambda c, name: [None] * c.n),
            ("no gradient", "down", lambda c, name: [None] * c.n),
            ("the other backward of a gather", "x", split_not_summed),
            ("no way back by the residual", "x", without_residual),
            ("replicated gradient not summed", "weight", of_own_tokens),
            ("replicated gradient not summed", "bias", of_own_tokens),
            ("n times", "", times(lambda n: n)),
            ("divided by n", "", times(lambda n: 1 / n)),
        ),
        budget=Budget(
            forward=[PAIR],
            backward=[PAIR, AGAIN],
            beside={"all_reduce": 2},
            most=most,
            wirings=(
                ("all-reduce, then split", lambda to, _: {*to} & SUMS == {"all_reduce"}),
                ("gathered twice", lambda to, _: to.get("all_gather", 0) > 1),
                (
                    "scattered twice",
                    lambda to, back: to == PAIR and back.get("reduce_scatter", 0) > 1,
                ),
            ),
        ),
        means={"sequences": "b", "tokens": "s", "elements of a token": "h"},
        whole="all tokens",
        named={"several calls at once": "wrong second step"},
        kept="all tokens kept",
    ).judge,
    **SAYS.about,
)
