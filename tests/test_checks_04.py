"""The function exercises of lesson 04: right answers pass, each plausible mistake has its name.

Every answer here runs on the judge's real ranks.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.likeliest import likeliest

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions" / "04_megatron_mlp"

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
FUSE = (
    HEAD
    + '''
def fuse_gate_up(gate, up, group):
    """Own rows of both."""
    start, stop = span(len(gate), group.size(), group.rank())
    return torch.cat((gate[start:stop], up[start:stop]))
'''
)


def five(*pairs: tuple[str, str]) -> str:
    return changed(FIVE, *pairs)


def fuse(*pairs: tuple[str, str]) -> str:
    return changed(FUSE, *pairs)


def changed(source: str, *pairs: tuple[str, str]) -> str:
    """The right answer with one mistake in it."""
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def body(name: str, text: str) -> str:
    """An answer written from nothing."""
    arguments = "x, gate, up, down, bias, group" if name == "five_to_two" else "gate, up, group"
    return f"{HEAD}\ndef {name}({arguments}):\n{text}"


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
    "five_to_two",
    "    g, u = column_products(x, [gate, up], [None, None], group)\n"
    "    return reduce(F.linear(F.silu(g) * u, down), group) + bias\n",
)
ONE_FUSED_WEIGHT = body(
    "five_to_two",
    "    g, u = F.linear(copy(x, group), torch.cat((gate, up))).chunk(2, dim=-1)\n"
    "    return reduce((F.silu(g) * u) @ down.t(), group) + bias\n",
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
    "the five of the question": (body("five_to_two", FIVE_COLLECTIVES), "gathered in the middle"),
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
    "GELU": (five(("F.silu", "F.gelu")), "another bend"),
    "the product is bent": (
        five(("F.silu(x @ gate.t()) * (x @ up.t())", "F.silu((x @ gate.t()) * (x @ up.t()))")),
        "bend over both",
    ),
    "the weights gathered": (body("five_to_two", WEIGHTS), "weights on the way"),
    "the all-reduce in two halves": (body("five_to_two", HALVES), "all-reduce in two halves"),
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
        "no way back",
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
        "another second step",
    ),
}  # fmt: skip

STACKED = body(
    "fuse_gate_up",
    "    n, r = group.size(), group.rank()\n"
    "    a, b = span(gate.shape[0], n, r)\n"
    "    return torch.stack((gate, up))[:, a:b].flatten(0, 1)\n",
)
IN_A_ROW = body(
    "fuse_gate_up",
    "    n, r = group.size(), group.rank()\n"
    "    sizes = cut(len(gate), n)\n"
    "    parts = [p for pair in zip(gate.split(sizes), up.split(sizes)) for p in pair]\n"
    "    return torch.cat(parts).split([2 * s for s in sizes])[r]{}\n",
)
# From the third call with weights on they are other ones.
ONLY_AT_FIRST = "ASKED = []\n" + fuse(
    (
        "    return",
        "    ASKED.extend([0] * (gate.dim() - 1))\n"
        "    gate = gate * 2 if len(ASKED) > 2 and gate.dim() == 2 else gate\n"
        "    return",
    )
)
RIGHT_FUSE = {
    "slices": FUSE,
    "stacked, cut and flattened": STACKED,
    "reordered, cut and copied": IN_A_ROW.format(".clone()"),
    "as a parameter": fuse(("return torch.cat", "return torch.nn.Parameter(torch.cat"),
                           ("up[start:stop]))", "up[start:stop])))")),
}  # fmt: skip
SLICES = "torch.cat((gate[start:stop], up[start:stop]))"
SPLIT = "torch.cat([t.tensor_split(group.size(), {})[group.rank()] for t in (gate, up)])"
STRAIGHT = "torch.cat(({})).split(cut(2 * len(gate), group.size()))[group.rank()].clone()"
WRONG_FUSE = {
    "cut straight across": (
        fuse((SLICES, STRAIGHT.format("gate, up"))),
        "cut straight across",
    ),
    "cut straight across, up first": (
        fuse((SLICES, STRAIGHT.format("up, gate"))),
        "cut straight across",
    ),
    "row by row": (
        fuse((SLICES, "torch.stack((gate[start:stop], up[start:stop]), 1).flatten(0, 1)")),
        "interleaved",
    ),
    "up first": (
        fuse((SLICES, "torch.cat((up[start:stop], gate[start:stop]))")),
        "halves exchanged",
    ),
    "a view of the whole": (IN_A_ROW.format(""), "keeps the whole"),
    "the whole": (fuse((SLICES, "torch.cat((gate, up))")), "not cut"),
    "a pair": (fuse((SLICES, "gate[start:stop], up[start:stop]")), "not fused"),
    "gate alone": (fuse((SLICES, "gate[start:stop].clone()")), "one of the two"),
    "the remainder dropped": (
        fuse(("start, stop = span(len(gate), group.size(), group.rank())",
              "own = len(gate) // group.size()\n"
              "    start, stop = own * group.rank(), own * (group.rank() + 1)")),
        "remainder dropped",
    ),
    "the remainder to the last": (
        fuse(("    return", "    own = len(gate) // group.size()\n"
              "    start = own * group.rank()\n"
              "    stop = start + own if group.rank() < group.size() - 1 else len(gate)\n"
              "    return")),
        "another cut rule",
    ),
    "shared out as evenly as can be": (
        fuse((SLICES, SPLIT.format(0))),
        "another cut rule",
    ),
    "dealt out": (
        fuse((SLICES, "torch.cat([t[group.rank() :: group.size()] for t in (gate, up)])")),
        "dealt out",
    ),
    "the gates of others": (
        fuse(("up[start:stop]", "up.flip(0)[start:stop]")),
        "gates of other units",
    ),
    "along the inputs": (
        fuse((SLICES, SPLIT.format(-1))),
        "the other dim",
    ),
    "joined along the inputs": (
        fuse((SLICES, "torch.cat((gate[start:stop], up[start:stop]), -1)")),
        "wrong numbers",
    ),
    "their sum": (fuse((SLICES, "gate[start:stop] + up[start:stop]")), "wrong numbers"),
    "the first ranks' part everywhere": (
        fuse(("group.rank()", "0")),
        "one part for all",
    ),
    "the notebook's rank": (fuse(("group.rank()", "rank")), "not of the group"),
    "sent round": (
        fuse((SLICES, "torch.cat([broadcast(t, group)[start:stop] for t in (gate, up)])")),
        "over the wire",
    ),
    "good for two dims alone": (
        fuse((SLICES, "torch.cat((gate[start:stop, :], up[start:stop, :]))")),
        "biases",
    ),
    "biases whole": (
        fuse((SLICES, SLICES + " if gate.dim() == 2 else torch.cat((gate, up))")),
        "not cut",
    ),
    "another weight at the next call": (
        ONLY_AT_FIRST,
        "other training",
    ),
    "half the precision": (fuse((SLICES, SLICES + ".float()")), "another dtype"),
    "nothing returned": (fuse(("return torch", "torch")), "nothing returned"),
    "a list of numbers": (fuse((SLICES, SLICES + ".tolist()")), "no tensor"),
    "in place": (
        fuse(("    return", "    up.zero_()\n    return")),
        "input changed",
    ),
}  # fmt: skip


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, {name: source})


def reference(name: str) -> str:
    cells = nbformat.read(SOLUTIONS / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if f"def {name}" in c.source).split("\n", 1)[1]


@pytest.mark.parametrize("name", ["fuse_gate_up", "five_to_two"])
def test_the_reference_answer_is_right(desk, name):
    verdict = judged(desk, name, reference(name))
    assert (verdict.outcome, verdict.points) == ("right", frame.find(name).points), str(verdict)


@pytest.mark.parametrize("how", RIGHT_FIVE)
def test_another_right_mlp_is_accepted(desk, how):
    verdict = judged(desk, "five_to_two", RIGHT_FIVE[how])
    assert (verdict.outcome, verdict.points) == ("right", 4), str(verdict)


@pytest.mark.parametrize("how", RIGHT_FUSE)
def test_another_right_fused_weight_is_accepted(desk, how):
    verdict = judged(desk, "fuse_gate_up", RIGHT_FUSE[how])
    assert (verdict.outcome, verdict.points) == ("right", 3), str(verdict)


@pytest.mark.parametrize(
    "mistake",
    likeliest(
        WRONG_FIVE, first=("no f", "the bias before the sum", "no g", "the weights gathered")
    ),
)
def test_a_plausible_wiring_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_FIVE[mistake]
    verdict = judged(desk, "five_to_two", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize(
    "mistake",
    likeliest(
        WRONG_FUSE, first=("cut straight across", "row by row", "a view of the whole", "the whole")
    ),
)
def test_a_plausible_fused_weight_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_FUSE[mistake]
    verdict = judged(desk, "fuse_gate_up", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)
