"""A whole exercise as its author writes it, by `layers`: `two_columns`, a product cut by columns.

It stands in no lesson; its page is `two_columns.md`.
tests/course_lessons/test_layers_declared.py tries its answers, and counts its lines.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from course_classroom.judge.frame import Exercise
from course_classroom.judge.layer_looks import Budget, Declared, Seen
from course_classroom.judge.layers import Layer, Use
from course_classroom.judge.looking import ITEM, THREE, TWO
from course_classroom.judge.words import Page
from course_lib.ledger import forms

SAYS = Page(__file__, "two_columns")
LAYER = Layer(
    text="x[b, h] weight[f@tp, h] bias[f@tp] -> y[b, f@tp]",
    dense=lambda x, weight, bias: x @ weight.t() + bias,
    grows={"b": -1},
)


def outputs(c: Seen) -> Iterator[tuple[str, list[Tensor]]]:
    x, weight, _ = c.inputs
    yield "bias left out", c.cut("y", x @ weight.t())


def own_terms(c: Seen, name: str) -> list[Tensor]:
    return [c.part("y", c.dy, rank) @ c.shards(rank)[1] for rank in c.ranks]


def most(c: Seen, rank: int, back: dict) -> tuple[float, float]:
    return 0, forms.all_reduce(c.n, c.sizes["b"] * c.sizes["h"] * ITEM)


def sizes(f: int) -> dict[str, int]:
    return {"b": 5, "h": 6, "f": f}


TWO_COLUMNS = Exercise(
    judge=Declared(
        module=__name__,
        layer=LAYER,
        says=SAYS,
        owed="its columns of the product",
        cases=lambda seed: [(THREE, sizes(9)), (TWO, sizes(7)), (THREE, sizes(2))],
        uses=(*[Use(sizes(7))] * 2, Use(sizes(8), "float32"), Use(sizes(4), alone=True)),
        outputs=outputs,
        gradients=[("f left out", "x", own_terms)],
        budget=Budget(
            forward=[{}],
            backward=[{"all_reduce": 1}],
            most=most,
            wirings=[("gathered in vain", lambda there, back: "all_gather" in there)],
        ),
        means={"rows": "b"},
        whole="all columns",
    ).judge,
    **SAYS.about,
)

ANSWER = """
from course_lib.tensor_parallel.conjugates import copy

def two_columns(x, weight, bias, group):
    return copy(x, group) @ weight.t() + bias
"""
OWN_PAIR = """
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        dy = dy.contiguous()
        dist.all_reduce(dy, group=ctx.group)
        return dy, None


def two_columns(x, weight, bias, group):
    return torch.nn.functional.linear(Enter.apply(x, group), weight, bias)
"""
RIGHT = {"the pair": ANSWER, "a pair of one's own": OWN_PAIR}
GATHER = """
    pieces = [torch.empty(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(pieces, torch.tensor([len(weight)]), group=group)
    return y
"""
WRONG = {  # how: (what in an answer is changed, into what; the name)
    "no f": (ANSWER, "copy(x, group)", "x", "f left out"),
    "no bias": (ANSWER, " + bias", "", "bias left out"),
    "a message more": (ANSWER, "    return ", "    y = ", "gathered in vain"),
    "the group on the class": (OWN_PAIR, "ctx.group", "Enter.group", "several calls at once"),
}
