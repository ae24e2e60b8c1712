"""Answers to `five_to_two` of lesson 04: right ones, and wrong ones with the name of each.

More stand in `lesson_04_tried.py`.
"""

from __future__ import annotations

from tests.course_lessons.answers import changed

HEAD = """
import torch.nn.functional as F

from course_lib.collectives import all_gather, all_reduce, broadcast
from course_lib.layout import cut, span
from course_lib.tensor_parallel import column_products
from course_lib.tensor_parallel.conjugates import copy, gather, reduce, reduce_scatter, split

"""
FIVE = (
    HEAD
    + '''
def five_to_two(x, gate, up, down, bias, group):
    """One message each way."""
    x = copy(x, group)
    inner = F.silu(x @ gate.t()) * (x @ up.t())
    return reduce(inner @ down.t(), group) + bias
'''
)


def five(*pairs: tuple[str, str]) -> str:
    return changed(FIVE, *pairs)


def body(text: str) -> str:
    """An answer written from nothing."""
    return f"{HEAD}\ndef five_to_two(x, gate, up, down, bias, group):\n{text}"


OWN_F_AND_G = (
    HEAD
    + """
class F_(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        dy = dy.clone()
        dist.all_reduce(dy, group=ctx.group)
        return dy, None


class G_(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, dy):
        return dy, None


def five_to_two(x, gate, up, down, bias, group):
    x = F_.apply(x, group)
    return G_.apply((F.silu(x @ gate.t()) * (x @ up.t())) @ down.t(), group) + bias
"""
)
FUSED_PRODUCTS = body(
    "    g, u = column_products(x, [gate, up], [None, None], group)\n"
    "    return reduce(F.linear(F.silu(g) * u, down), group) + bias\n"
)
ONE_FUSED_WEIGHT = body(
    "    g, u = F.linear(copy(x, group), torch.cat((gate, up))).chunk(2, dim=-1)\n"
    "    return reduce((F.silu(g) * u) @ down.t(), group) + bias\n"
)
RIGHT_FIVE = {
    "the pairs": FIVE,
    "an f and a g of one's own": OWN_F_AND_G,
    "two products with one f": FUSED_PRODUCTS,
    "one fused product": ONE_FUSED_WEIGHT,
}

SUM_OF_EQUAL = (
    HEAD
    + """
class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx, dy):
        return all_reduce(dy, ctx.group), None


def five_to_two(x, gate, up, down, bias, group):
    x = copy(x, group)
    return Summed.apply((F.silu(x @ gate.t()) * (x @ up.t())) @ down.t(), group) + bias
"""
)
HALVES = """
    x = copy(x, group)
    part = (F.silu(x @ gate.t()) * (x @ up.t())) @ down.t()
    sizes = cut(part.shape[-1], group.size())
    mine = reduce_scatter(part, group, -1, sizes)
    return gather(mine, group, -1, sizes, after="replicated") + bias
"""
WEIGHTS = """
    n = group.size()
    counts = torch.zeros(n, dtype=torch.int64)
    counts[group.rank()] = len(gate)
    sizes = all_reduce(counts, group).tolist()
    gate = gather(gate, group, 0, sizes, after="replicated")
    up = gather(up, group, 0, sizes, after="replicated")
    down = gather(down, group, 1, sizes, after="replicated")
    return (F.silu(x @ gate.t()) * (x @ up.t())) @ down.t() + bias
"""
# Where each rank's part of the inner numbers ends up whole and is cut again, as in the question.
FIVE_COLLECTIVES = """
    n = group.size()
    inner = F.silu(copy(x, group) @ gate.t()) * (copy(x, group) @ up.t())
    sizes = [len(gate)] * n
    pieces = [torch.empty(1, dtype=torch.int64) for _ in range(n)]
    dist.all_gather(pieces, torch.tensor([len(gate)]), group=group)
    sizes = [int(p) for p in pieces]
    whole = gather(inner, group, -1, sizes, after="replicated")
    mine = split(whole, group, -1, sizes)
    return reduce(mine @ down.t(), group) + bias
"""
WRONG_FIVE = {
    "the five of the question": (body(FIVE_COLLECTIVES), "gathered in the middle"),
    "an f for each product": (
        five(
            ("    x = copy(x, group)\n", ""),
            ("F.silu(x @", "F.silu(copy(x, group) @"),
            ("* (x @", "* (copy(x, group) @"),
        ),
        "one f per product",
    ),
    "no f": (five(("    x = copy(x, group)\n", "")), "f left out"),
    "an f for gate alone": (
        five(("    x = copy(x, group)\n", ""), ("F.silu(x @", "F.silu(copy(x, group) @")),
        "one branch without f",
    ),
    "f twice": (five(("copy(x, group)", "copy(copy(x, group), group)")), "f twice"),
    "no g": (five(("reduce(inner @ down.t(), group)", "inner @ down.t()")), "sum left out"),
    "no g, no bias": (
        five(("reduce(inner @ down.t(), group) + bias", "inner @ down.t()")),
        "sum left out",
    ),
    "the bias before the sum": (
        five(("inner @ down.t(), group) + bias", "inner @ down.t() + bias, group)")),
        "bias n times",
    ),
    "a part of the bias before the sum": (
        five(("inner @ down.t(), group) + bias", "inner @ down.t() + bias / group.size(), group)")),
        "bias in n parts",
    ),
    "the bias on rank 0, before the sum": (
        five(
            (
                "reduce(inner @ down.t(), group) + bias",
                "reduce(inner @ down.t() + (bias if group.rank() == 0 else 0), group)",
            )
        ),
        "bias on one rank",
    ),
    "an f for the bias": (five(("+ bias", "+ copy(bias, group)")), "f on the bias"),
    "no bias": (five((" + bias", "")), "bias left out"),
    "a part of the bias after the sum": (
        five(("group) + bias", "group) + bias / group.size()")),
        "bias divided",
    ),
    "g for f, f for g": (
        five(("copy(x, group)", "reduce(x, group)"), ("reduce(inner @", "copy(inner @")),
        "f and g exchanged",
    ),
    "a sum whose backward sums": (SUM_OF_EQUAL, "sum of equal gradients"),
    "g twice": (
        five(("reduce(inner @ down.t(), group)", "reduce(reduce(inner @ down.t(), group), group)")),
        "summed twice",
    ),
    "the mean": (five(("), group) +", "), group) / group.size() +")), "mean"),
    "up is bent": (
        five(("silu(x @ gate", "silu(x @ up"), ("(x @ up.t())\n", "(x @ gate.t())\n")),
        "gate and up exchanged",
    ),
    "GELU": (five(("F.silu", "F.gelu")), "wrong activation function"),
    "the product is bent": (
        five(("F.silu(x @ gate.t()) * (x @ up.t())", "F.silu((x @ gate.t()) * (x @ up.t()))")),
        "activation over the product",
    ),
    "the weights gathered": (body(WEIGHTS), "weights gathered"),
    "the all-reduce in two halves": (body(HALVES), "all-reduce in two halves"),
    "both gradients side by side in one f": (
        five(
            ("x = copy(x, group)", "x, z = copy(torch.stack((x, x)), group)"),
            ("* (x @", "* (z @"),
        ),
        "more than Φ",
    ),
    "the torch way, detached": (
        five(("reduce(inner @ down.t(), group)", "all_reduce((inner @ down.t()).detach(), group)")),
        "weights left out",
    ),
    "no history at all": (
        five(("    return", "    with torch.no_grad():\n     return")),
        "no gradient",
    ),
    "on rank 0 only": (
        five(
            ("    return reduce(inner @ down.t(), group) + bias",
             "    y = reduce(inner @ down.t(), group) + bias\n"
             "    return y if group.rank() == 0 else y * 0"),
        ),
        "not on every rank",
    ),
    "the notebook's group": (
        five(("x = copy(x, group)", "x = copy(x, dist.group.WORLD)")),
        "group left out",
    ),
    "nothing returned": (five(("return reduce", "reduce")), "nothing returned"),
    "a leaf": (
        five(("return reduce(inner @ down.t(), group) + bias",
              "return (reduce(inner @ down.t(), group) + bias).detach().requires_grad_()")),
        "weights left out",
    ),
    "a pair": (five(("group) + bias", "group) + bias, x")), "wrong shape"),
    "numpy": (five(("group) + bias", "group).detach().numpy()")), "wrong shape"),
    "no way back through the sum": (
        five(("reduce(inner @", "reduce(inner.data.numpy() @")),
        "raised",
    ),
    "half the precision": (five(("group) + bias", "group).float() + bias.float()")), "wrong shape"),
    "this rank's columns": (five(("+ bias", "[..., :1] + bias[:1]")), "wrong shape"),
    "in place": (
        five(("    x = copy", "    with torch.no_grad():\n        bias += 1\n    x = copy")),
        "input changed",
    ),
    "something is kept": (
        "SEEN = {}\n"
        + ONE_FUSED_WEIGHT.replace(
            "torch.cat((gate, up))", "SEEN.setdefault(group.group_name, torch.cat((gate, up)))"
        ),
        "wrong second step",
    ),
}  # fmt: skip

FIRST = ("no f", "the bias before the sum", "no g", "the weights gathered")
RIGHT = {"five_to_two": RIGHT_FIVE}
WRONG = {"five_to_two": {how: WRONG_FIVE[how] for how in FIRST} | WRONG_FIVE}
