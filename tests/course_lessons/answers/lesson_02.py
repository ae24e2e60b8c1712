"""Answers to lesson 02's exercises: right ones, and likely wrong ones with the name of each.

What is wrong is a change of a right answer, of which there are several.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import partial

import torch

from tests.course_lessons.answers import changed

STEP = """
from course_lib.collectives import all_reduce


def row_step(x, weight, bias, target, lr, group):
    y = all_reduce(x @ weight, group) + bias
    dy = y - target
    return y, weight - lr * (x.T @ dy), bias - lr * dy.sum(0)
"""
IN_PLACE = """
def row_step(x, weight, bias, target, lr, group):
    y = x @ weight
    dist.all_reduce(y, group=group)
    y += bias
    dy = y - target
    weight.addmm_(x.t(), dy, alpha=-lr)
    bias.sub_(dy.sum(dim=0), alpha=lr)
    return [y, weight, bias]
"""
MOMENTUM = """
from course_lib.collectives import all_reduce


def row_step(x, weight, bias, target, lr, group, state={}):
    y = all_reduce(x @ weight, group) + bias
    dy = y - target
    state["bias"] = 0.9 * state.get("bias", 0) + dy.sum(0)
    return y, weight - lr * (x.T @ dy), bias - lr * state["bias"]
"""
OWN_BIAS = """
from course_lib.collectives import all_reduce

BIASES = {}


def row_step(x, weight, bias, target, lr, group):
    bias = BIASES.setdefault(bias.shape, bias)
    y = all_reduce(x @ weight, group) + bias
    dy = y - target
    BIASES[bias.shape] = bias - lr * dy.sum(0)
    return y, weight - lr * (x.T @ dy), BIASES[bias.shape]
"""
Y_BUFFER = """
OUT = {}


def row_step(x, weight, bias, target, lr, group):
    y = OUT.setdefault(target.shape, torch.empty_like(target))
    torch.mm(x, weight, out=y)
    dist.all_reduce(y, group=group)
    y += bias
    dy = y - target
    return y, weight - lr * (x.T @ dy), bias - lr * dy.sum(0)
"""
SUM, RETURNED = "all_reduce(x @ weight, group)", "weight - lr * (x.T @ dy), bias - lr * dy.sum(0)"
REDUCED = "    dist.all_reduce(y, group=group)\n"
Y = "    y = all_reduce(x @ weight, group) + bias\n"
EMPTY_STEP = "    if weight.numel() == 0:\n        return target, weight, bias\n"
MIXED = "    dy = y - target\n"

GRADS = """
from course_lib.collectives import all_reduce


def cut_gradients(x, weight, dy, group, way):
    dx, dw, db = dy @ weight.T, x.T @ dy, dy.sum(0)
    if way == "columns":
        dx = all_reduce(dx, group)
    return dx, dw, db
"""
BOTH_WAYS = """
def by_columns(x, weight, dy, group):
    dx = torch.einsum("bf,hf->bh", dy, weight).contiguous()
    dist.all_reduce(dx, group=group)
    return dx


def by_rows(x, weight, dy, group):
    return torch.einsum("bf,hf->bh", dy, weight)
"""
TABLE = """
WAYS = {"columns": by_columns, "rows": by_rows}


def cut_gradients(x, weight, dy, group, way):
    dx = WAYS[way](x, weight, dy, group)
    return [dx, torch.einsum("bh,bf->hf", x, dy), torch.ones(len(dy), dtype=dy.dtype) @ dy]
"""
OVERLAPPED = """
def cut_gradients(x, weight, dy, group, way):
    dx = dy.mm(weight.t())
    work = dist.all_reduce(dx, group=group, async_op=True) if way == "columns" else None
    dw = x.t().mm(dy)
    if work:
        work.wait()
    return dx, dw, torch.einsum("bf->f", dy)
"""
DX_BUFFER = """
BUFFERS = {}


def cut_gradients(x, weight, dy, group, way):
    dx = BUFFERS.setdefault((x.shape, x.dtype), torch.empty_like(x))
    torch.mm(dy, weight.T, out=dx)
    if way == "columns":
        dist.all_reduce(dx, group=group)
    return dx, x.T @ dy, dy.sum(0)
"""
DX_SUM, BACK = "dx = all_reduce(dx, group)", "    return dx, dw, db"
EMPTY_GRADS = "    if dy.numel() == 0:\n        return x * 0, weight * 0, dy.sum(0)\n    dx, dw"

INIT = """
from course_lib.layout import span


def sharded_init(h, f, way, group):
    layer = torch.nn.Linear(h, f)
    weight, bias = layer.weight.detach(), layer.bias.detach()
    lo, hi = span(f if way == "columns" else h, group.size(), group.rank())
    if way == "columns":
        return weight[lo:hi].clone(), bias[lo:hi].clone()
    return weight[:, lo:hi].clone(), bias.clone()
"""
PART = """
from course_lib.layout import span

part = lambda t, dim, group: t.narrow(
    dim, (s := span(t.shape[dim], group.size(), group.rank()))[0], s[1] - s[0]
)
"""
PARAMETERS = """
@torch.no_grad()
def sharded_init(h, f, way, group):
    layer = torch.nn.Linear(h, f)
    if way == "columns":
        own = [part(layer.weight, 0, group), part(layer.bias, 0, group)]
        return tuple(torch.nn.Parameter(one.clone()) for one in own)
    return part(layer.weight, 1, group).clone(), layer.bias
"""
BY_HAND = """
from course_lib.layout import span


def sharded_init(h, f, way, group):
    weight, bias = torch.empty(f, h), torch.empty(f)
    torch.nn.init.kaiming_uniform_(weight, a=5**0.5)
    torch.nn.init.uniform_(bias, -(h**-0.5), h**-0.5)
    dim = 0 if way == "columns" else 1
    mine = torch.arange(*span(weight.shape[dim], group.size(), group.rank()))
    return weight.index_select(dim, mine), bias[mine] if dim == 0 else bias
"""
LAYER, OWN = "torch.nn.Linear(h, f)", "weight[lo:hi].clone(), bias[lo:hi].clone()"
CHUNKS = "weight.chunk(group.size())[group.rank()].clone(), bias.chunk(group.size())[group.rank()]"
NTH = "weight[group.rank() :: group.size()].clone(), bias[group.rank() :: group.size()].clone()"
KEPT = changed(
    INIT,
    ("\n\ndef", "\n\nLAYERS = {}\n\n\ndef"),
    (f"layer = {LAYER}", f"layer = LAYERS.setdefault((h, f), None) or {LAYER}"),
    ("    weight, bias =", "    LAYERS[h, f] = layer\n    weight, bias ="),
)

SEVEN = {
    "columns: W on rank 0": 14, "columns: W on rank 2": 7,
    "rows: W on rank 0": 15, "rows: W on rank 2": 5,
    "columns: all-reduced": 28, "rows: all-reduced": 20,
    "columns: bytes": 448 / 3, "rows: bytes": 320 / 3,
}  # fmt: skip
SUMS, BYTES = ("columns: all-reduced", "rows: all-reduced"), ("columns: bytes", "rows: bytes")
CUT = {"A": (2, 48), "B": (3, 16), "C": (1, 48), "D": (2, 48), "E": (1, 48)}
MYSTERY = {
    f"{layer}: {what}": number
    for layer, numbers in CUT.items()
    for what, number in zip(("cut", "weight"), numbers, strict=True)
}


def seven(fields: tuple[str, ...], *numbers: float) -> dict:
    return {**SEVEN, **dict(zip(fields, numbers, strict=True))}


GRADIENTS = """
from course_lib.collectives import all_gather, all_reduce

def cut_gradients(x, weight, dy, group, way):
    n = group.size()
    dx = dy @ weight.T
    dw = x.T @ dy
    db = dy.sum(0)
    if way == "columns":
        dx = all_reduce(dx, group)
    return dx, dw, db
"""
gradients = partial(changed, GRADIENTS)
ROW = """
from course_lib.collectives import all_gather, all_reduce

def row_step(x, weight, bias, target, lr, group):
    n, me = group.size(), group.rank()
    y = all_reduce(x @ weight, group)
    y = y + bias
    dy = y - target
    dw = x.T @ dy
    db = dy.sum(0)
    weight = weight - lr * dw
    bias = bias - lr * db
    return y, weight, bias
"""
row = partial(changed, ROW)
LIN = """
from course_lib.collectives import all_gather, all_reduce, broadcast, scatter
from course_lib.layout import cut, span

def sharded_init(h, f, way, group):
    n, me = group.size(), group.rank()
    dense = torch.nn.Linear(h, f)
    weight, bias = dense.weight.detach(), dense.bias.detach()
    if way == "columns":
        own = slice(*span(f, n, me))
        return weight[own].clone(), bias[own].clone()
    own = slice(*span(h, n, me))
    return weight[:, own].clone(), bias
"""
lin = partial(changed, LIN)
SUMMED = "        dx = all_reduce(dx, group)\n"
GATHERS_ALL = """
from course_lib.collectives import all_gather
from course_lib.layout import span

def cut_gradients(x, weight, dy, group, way):
    if way == "rows":
        return dy @ weight.T, x.T @ dy, dy.sum(0)
    sizes = [None] * group.size()
    dist.all_gather_object(sizes, weight.shape[1], group=group)
    weight, every = all_gather(weight, group, 1, sizes), all_gather(dy, group, 1, sizes)
    own = slice(*span(sum(sizes), group.size(), group.rank()))
    return every @ weight.T, (x.T @ every)[:, own], dy.sum(0)
"""
# How an answer is wrong, and the name under which it is refused.
WRONG_GRADIENTS = {
    "no sum": (gradients((SUMMED, "        pass\n")), "sum left out"),
    "the mean": (gradients((SUMMED, SUMMED.rstrip() + " / n\n")), "mean"),
    "all of dX summed": (gradients(('if way == "columns"', "if True")), "different shards added"),
    "dW summed": (
        gradients(("dw = x.T @ dy", "dw = all_reduce(x.T @ dy, group)")),
        "different shards added",
    ),
    "dW averaged": (
        gradients(("dw = x.T @ dy", "dw = all_reduce(x.T @ dy, group) / n")),
        "different shards added",
    ),
    "db summed": (
        gradients(
            ("    return", '    if way == "rows":\n        db = all_reduce(db, group)\n    return')
        ),
        "counted on every rank",
    ),
    "db a mean over the batch": (gradients(("dy.sum(0)", "dy.mean(0)")), "mean over the rows"),
    "dW transposed": (gradients(("x.T @ dy", "dy.T @ x")), "transposed"),
    "wrong order": (gradients(("return dx, dw, db", "return dw, dx, db")), "wrong order"),
    "dX joined": (
        gradients(
            (
                SUMMED,
                SUMMED + "    else:\n        sizes = [None] * n\n"
                "        dist.all_gather_object(sizes, dx.shape[1], group=group)\n"
                "        dx = all_gather(dx, group, 1, sizes)\n",
            )
        ),
        "full tensor on every rank",
    ),
    "all gathered": (GATHERS_ALL, "gathered"),
    "parts gathered, then summed": (
        gradients((SUMMED, "        dx = all_gather(dx[None].clone(), group).sum(0)\n")),
        "gathered",
    ),
    "a sum that undoes itself": (
        gradients(
            (
                "n = group.size()",
                'n = group.size()\n    if way == "rows":\n        dy = all_reduce(dy, group) / n',
            )
        ),
        "sent for nothing",
    ),
    "summed twice": (
        gradients((SUMMED, SUMMED + "        dx = all_reduce(dx, group) / n\n")),
        "over budget",
    ),
    "into the memory of X": (
        gradients(("    db = dy", "    dx = x.copy_(dx)\n    db = dy")),
        "input changed",
    ),
    "downhill already": (gradients(("db = dy", "db = -dy")), "sign"),
    "by autograd": (
        gradients(
            (
                "dx = dy @ weight.T",
                "x = x.clone().requires_grad_()\n    y = x @ weight\n"
                "    y.backward(dy)\n    dx = x.grad",
            )
        ),
        "autograd",
    ),
    "two of three": (gradients(("return dx, dw, db", "return dx, dw")), "not these tensors"),
    "one of them missing": (
        gradients(("return dx, dw, db", "return dx, dw, None")),
        "not these tensors",
    ),
    "nothing returned": (gradients(("return dx", "dx")), "nothing returned"),
    "half the precision": (gradients(("return dx,", "return dx.float(),")), "wrong dtype"),
    "the notebook's own group": (
        gradients((SUMMED, "        dist.all_reduce(dx)\n")),
        "group left out",
    ),
}

WRONG_STEPS = {
    "added before the sum": (
        row(("x @ weight, group", "x @ weight + bias, group"), ("    y = y + bias\n", "")),
        "bias added on every rank",
    ),
    "forgotten": (row(("    y = y + bias\n", "")), "bias left out"),
    "added on rank 0 alone, after the sum": (
        row(("y = y + bias", "y = y + bias if me == 0 else y")),
        "bias left out",
    ),
    "rank 0 keeps and trains it": (
        row(
            ("x @ weight, group", "x @ weight + (bias if me == 0 else 0), group"),
            ("    y = y + bias\n", ""),
            ("bias = bias - lr * db", "bias = bias - lr * db if me == 0 else bias"),
        ),
        "bias trained on some ranks",
    ),
    "its gradient summed": (
        row(("db = dy.sum(0)", "db = all_reduce(dy.sum(0), group)")),
        "bias trained N times as fast",
    ),
    "shared out": (
        row(
            ("x @ weight, group", "x @ weight + bias / n, group"),
            ("    y = y + bias\n", ""),
            ("db = dy.sum(0)", "db = dy.sum(0) / n"),
        ),
        "bias trained N times as slowly",
    ),
    "never trained": (row(("    bias = bias - lr * db\n", "")), "bias not trained"),
    "cut like the weight": (
        row(
            (
                "bias = bias - lr * db",
                "own = slice(me * len(db) // n, (me + 1) * len(db) // n)\n"
                "    bias = bias.clone()\n    bias[own] -= lr * db[own]",
            )
        ),
        "bias cut",
    ),
    "a part of it returned": (
        row(("return y, weight, bias", "return y, weight, bias[: 1 + len(bias) // n]")),
        "bias cut",
    ),
    "no sum": (row(("all_reduce(x @ weight, group)", "x @ weight")), "sum left out"),
    "the mean of the parts": (
        row(("all_reduce(x @ weight, group)", "all_reduce(x @ weight, group) / n")),
        "mean",
    ),
    "dW summed": (
        row(("dw = x.T @ dy", "dw = all_reduce(x.T @ dy, group)")),
        "different shards added",
    ),
    "the loss not halved": (row(("dy = y - target", "dy = 2 * (y - target)")), "wrong step"),
    "uphill": (row(("weight - lr", "weight + lr")), "uphill"),
    "the weight as it was": (
        row(("return y, weight, bias", "return y, weight + lr * dw, bias")),
        "weight not trained",
    ),
    "kept alike by a mean": (
        row(("    return", "    bias = all_reduce(bias, group) / n\n    return")),
        "over budget",
    ),
    "target as scratch": (row(("dy = y - target", "dy = target.neg_().add_(y)")), "input changed"),
    "bias on one rank only": (
        row(("return y, weight, bias", "return y, weight, bias if me == 0 else None")),
        "not these tensors",
    ),
}

DRAWS_A_PART = """
from course_lib.layout import span

def sharded_init(h, f, way, group):
    n, me = group.size(), group.rank()
    SEED
    start, stop = span(f if way == "columns" else h, n, me)
    ends = (h, stop - start) if way == "columns" else (stop - start, f)
    part = torch.nn.Linear(*ends)
    return part.weight.detach(), part.bias.detach()
"""
UNIFORM = """
from course_lib.layout import span

def sharded_init(h, f, way, group):
    n, me = group.size(), group.rank()
    bound = BOUND
    weight = torch.empty(f, h).uniform_(-bound, bound)
    bias = torch.empty(f).uniform_(-bound, bound)
    own = slice(*span(f if way == "columns" else h, n, me))
    if way == "columns":
        return weight[own].clone(), bias[own].clone()
    return weight[:, own].clone(), bias
"""
DRAWN = (
    "    weight = torch.empty(f, h).uniform_(-bound, bound)\n",
    "    bias = torch.empty(f).uniform_(-bound, bound)\n",
)
WRONG_INITS = {
    "a part from one seed": (DRAWS_A_PART.replace("SEED", "pass"), "same numbers on every rank"),
    "a part from a seed for each rank": (
        DRAWS_A_PART.replace("SEED", "torch.manual_seed(torch.initial_seed() + me)"),
        "a seed for each rank",
    ),
    "the whole from a seed for each rank": (
        lin(("    dense", "    torch.manual_seed(100 * me + torch.initial_seed())\n    dense")),
        "a seed for each rank",
    ),
    "the bound of the part": (
        UNIFORM.replace("BOUND", "(h if way == 'columns' else h / n) ** -0.5"),
        "fan-in of the part",
    ),
    "the bound of both ends": (UNIFORM.replace("BOUND", "(6 / (h + f)) ** 0.5"), "wrong scale"),
    "normal": (
        UNIFORM.replace("BOUND", "1").replace(
            "torch.empty(f, h).uniform_(-bound, bound)", "torch.randn(f, h)"
        ),
        "wrong distribution",
    ),
    "rank 0's to all": (
        lin(
            (
                "    if way",
                "    if way == 'columns':\n"
                "        mine = weight[slice(*span(f, n, me))].clone()\n"
                "        return broadcast(mine, group), bias[: f // n].clone()\n"
                "    if way",
            )
        ),
        "rank 0's part everywhere",
    ),
    "bias first": (
        UNIFORM.replace("BOUND", "h**-0.5").replace(DRAWN[0] + DRAWN[1], DRAWN[1] + DRAWN[0]),
        "other numbers",
    ),
    "bias of its own": (
        lin(("    if way", "    bias = torch.nn.Linear(h, f).bias.detach()\n    if way")),
        "bias drawn otherwise",
    ),
    "no bias": (lin((", dense.bias.detach()", ", torch.zeros(f)")), "zeros"),
    "another bias on each rank": (
        lin(("weight[:, own].clone(), bias", "weight[:, own].clone(), bias.roll(me)")),
        "bias differs by rank",
    ),
    "a seed of its own": (
        lin(("    dense", "    torch.manual_seed(0)\n    dense")),
        "other numbers",
    ),
    "drawn on rank 0 and sent": (
        lin(("    if way", "    weight = broadcast(weight, group)\n    if way")),
        "sent",
    ),
    "under a generator of its own": (
        lin(("    dense = torch", "    with torch.random.fork_rng():\n        dense = torch")),
        "generator out of step",
    ),
    "a little more on some ranks": (
        lin(("    if way", "    torch.rand(me)\n    if way")),
        "generator out of step",
    ),
    "generator put back": (
        lin(
            ("    dense", "    state = torch.get_rng_state()\n    dense"),
            ("    if way", "    torch.set_rng_state(state)\n    if way"),
        ),
        "generator out of step",
    ),
    "a view": (lin(("weight[own].clone()", "weight[own]")), "full layer kept in memory"),
    "a view of columns": (
        lin(("weight[:, own].clone()", "weight[:, own]")),
        "full layer kept in memory",
    ),
    "the whole": (
        lin(("return weight[:, own].clone(), bias", "return weight, bias")),
        "full tensor on every rank",
    ),
    "[h, f]": (lin(("weight[own].clone()", "weight[own].T.clone()")), "transposed"),
    "evenly": (
        lin(("own = slice(*span(h, n, me))", "own = slice(me * h // n, (me + 1) * h // n)")),
        "wrong shape",
    ),
}
ROADS = {
    "a reduce-scatter and an all-gather": (
        "cut_gradients",
        changed(
            GRADIENTS.replace("all_gather, all_reduce", "all_gather, all_reduce, reduce_scatter"),
            (
                SUMMED,
                "        from course_lib.layout import cut\n"
                "        sizes = cut(dx.shape[1], n)\n"
                "        dx = all_gather(reduce_scatter(dx, group, 1, sizes), group, 1, sizes)\n",
            ),
        ),
    ),
    "torch's own all-reduce, and a list": (
        "cut_gradients",
        gradients(
            (SUMMED, "        dist.all_reduce(dx, group=group)\n"),
            ("return dx, dw, db", "return [dx, dw, db]"),
        ),
    ),
    "einsum": ("cut_gradients", gradients(("x.T @ dy", "torch.einsum('bh,bf->hf', x, dy)"))),
    "on rank 0, before the sum": (
        "row_step",
        row(
            ("x @ weight, group", "x @ weight + (bias if me == 0 else 0), group"),
            ("    y = y + bias\n", ""),
        ),
    ),
    "an n-th on each rank, before the sum": (
        "row_step",
        row(("x @ weight, group", "x @ weight + bias / n, group"), ("    y = y + bias\n", "")),
    ),
    "weight and bias changed in place": (
        "row_step",
        row(
            ("weight = weight - lr * dw", "weight -= lr * dw"),
            ("bias = bias - lr * db", "bias -= lr * db"),
        ),
    ),
    "drawn by hand": ("sharded_init", UNIFORM.replace("BOUND", "h**-0.5")),
    "parameters": (
        "sharded_init",
        lin(
            (
                "return weight[:, own].clone(), bias",
                "return torch.nn.Parameter(weight[:, own].clone()), dense.bias",
            )
        ),
    ),
}
LIKELIEST = (
    "a part from one seed",
    "a part from a seed for each rank",
    "the bound of the part",
    "the whole",
)


def roads(exercise: str) -> dict:
    """Other roads to what is right."""
    return {how: source for how, (name, source) in ROADS.items() if name == exercise}


RIGHT: dict = {
    "row_step": {"plain": ROW, **roads("row_step"), "in place, as a list": IN_PLACE},
    "cut_gradients": {
        "plain": GRADIENTS,
        **roads("cut_gradients"),
        "a table of helpers": [BOTH_WAYS, TABLE],
        "overlapped": OVERLAPPED,
    },
    "sharded_init": {
        "plain": LIN,
        **roads("sharded_init"),
        "parameters, and a lambda": [PART, PARAMETERS],
        "drawn with torch's init": BY_HAND,
        "its seed again": changed(
            INIT, ("    layer", "    torch.manual_seed(torch.initial_seed())\n    layer")
        ),
    },
    "seven_by_five": {
        "rounded": seven(BYTES, 149, Decimal("106.7")),
        "other types": seven((*SUMS, *BYTES), 28.0, torch.tensor([20]), 149.3, Fraction(320, 3)),
    },
    "mystery_cut": {"other types": {**MYSTERY, "A: cut": 2.0, "B: weight": torch.tensor(16)}},
}

WRONG: dict = {
    "row_step": {
        **WRONG_STEPS,
        "one buffer for every Y": (Y_BUFFER, "one buffer"),
        "the first learning rate, for good": (
            row(("    dw =", "    RATES.append(lr)\n    lr = RATES[0]\n    dw ="))
            + "\n\nRATES = []\n",
            "wrong second step",
        ),
        "an empty rank skips": (changed(STEP, (Y, EMPTY_STEP + Y)), "left out by an empty rank"),
        "not waited for": (
            changed(IN_PLACE, ("group=group", "group=group, async_op=True")), "not waited for",
        ),
        "a mean over the batch": (
            changed(STEP, ("dy.sum(0)", "dy.mean(0)")), "a mean over the rows of X",
        ),
        "to one rank": (
            changed(IN_PLACE, (REDUCED, "    dist.reduce(y, group=group, group_dst=0)\n")),
            "on one rank only",
        ),
        "momentum": (MOMENTUM, "wrong second step"),
        "a bias of its own": (OWN_BIAS, "wrong second step"),
        "through float32": (
            changed(STEP, (SUM, "all_reduce((x @ weight).float(), group).to(x.dtype)")),
            "rounded on the way",
        ),
        "through bfloat16": (
            changed(STEP, (SUM, "all_reduce((x @ weight).bfloat16(), group).to(x.dtype)")),
            "rounded on the way",
        ),
        "Y changed": (changed(STEP, (MIXED, "    dy = y.sub_(target)\n")), "dY for Y"),
        "Y after the step": (
            changed(
                STEP,
                (f"    return y, {RETURNED}", f"    weight, bias = {RETURNED}\n"
                 f"    return {SUM} + bias, weight, bias"),
            ),
            "Y of the next step",
        ),
        "dY without the bias": (
            changed(STEP, (") + bias", ")"), (MIXED, MIXED + "    y = y + bias\n")),
            "dY without the bias",
        ),
        "dY before the sum": (
            changed(STEP, ("dy = y -", "dy = x @ weight + bias -")), "dY of a partial sum",
        ),
        "gradients": (changed(STEP, (RETURNED, "x.T @ dy, dy.sum(0)")), "gradient, not weight"),
        "one number": (changed(STEP, ("dy.sum(0)", "dy.sum()")), "summed over all"),
        "uphill": (changed(STEP, ("bias - lr", "bias + lr")), "uphill"),
        "sparse": (changed(STEP, ("return y,", "return y.to_sparse(),")), "not these tensors"),
        "a generator": (changed(STEP, ("return", "yield")), "not these tensors"),
    },
    "cut_gradients": {
        **WRONG_GRADIENTS,
        "one buffer for every dX": (DX_BUFFER, "one buffer"),
        "autograd switched on": (
            gradients(
                (
                    "    dx = dy @ weight.T\n    dw = x.T @ dy\n",
                    "    with torch.enable_grad():\n"
                    "        X, W = x.detach().requires_grad_(), weight.detach().requires_grad_()\n"
                    "        dx, dw = torch.autograd.grad(X @ W, (X, W), dy)\n",
                ),
            ),
            "autograd",
        ),
        "an empty rank skips": (
            changed(GRADS, ('"columns"', '"columns" and dy.numel()')), "left out by an empty rank",
        ),
        "an empty rank returns": (
            changed(GRADS, ("    dx, dw", EMPTY_GRADS)), "left out by an empty rank",
        ),
        "to one rank": (
            changed(GRADS, (DX_SUM, "dist.reduce(dx, group=group, group_dst=0)")),
            "on one rank only",
        ),
        "not waited for": (
            changed(OVERLAPPED, ("    if work:\n        work.wait()\n", "")), "not waited for",
        ),
        "db shared out": (
            changed(GRADS, (BACK, f"    db = db if way[0] == 'c' else db / group.size()\n{BACK}")),
            "a mean over the ranks",
        ),
        "kept by its size": (
            changed(
                GRADS,
                ("way):\n", "way, seen={}):\n    if (way, x.shape) in seen:\n"
                 "        return seen[way, x.shape]\n"),
                (BACK, f"    seen[way, x.shape] = dx, dw, db\n{BACK}"),
            ),
            "wrong second call",
        ),
        "through float32": (
            changed(GRADS, (DX_SUM, "dx = all_reduce(dx.float(), group).to(dx.dtype)")),
            "rounded on the way",
        ),
        "only float64": (changed(GRADS, ("dy.sum(0)", "dy.double().sum(0)")), "wrong dtype"),
    },
    "sharded_init": {
        **{how: WRONG_INITS[how] for how in LIKELIEST},
        **WRONG_INITS,
        "the notebook's rank": (
            changed(INIT, ("group.rank())", "dist.get_rank())")),
            "uses world numbers",
        ),
        "torch.chunk": (changed(INIT, (OWN, CHUNKS)), "uneven sizes"),
        "not detached": (
            changed(INIT, (".weight.detach()", ".weight"), (".bias.detach()", ".bias")),
            "full layer kept in memory",
        ),
        "kept in a list": (
            changed(INIT, ("\n\ndef", "\n\nALL = []\n\n\ndef"),
                ("    lo", "    ALL.append(layer)\n    lo")),
            "full layer kept in memory",
        ),
        "contiguous is no copy": (
            changed(INIT, (OWN, "weight[lo:hi].contiguous(), bias[lo:hi].clone()")),
            "full layer kept in memory",
        ),
        "in float64": (changed(INIT, (LAYER, f"{LAYER}.double()")), "wrong dtype"),
        "a layer that is kept": (KEPT, "wrong second call"),
        "every n-th": (changed(INIT, (OWN, NTH)), "every n-th"),
        "counted from the end": (
            changed(INIT, ("group.rank())", "group.size() - 1 - group.rank())")),
            "a different rank's part",
        ),
        "rounded": (changed(INIT, (LAYER, f"{LAYER}.bfloat16().float()")), "rounded on the way"),
    },
    "seven_by_five": {
        "on all three ranks": (seven(SUMS, 84, 60), "all ranks together"),
        "the bytes of all three": (seven(BYTES, 336, 240), "all ranks together"),
        "nothing by rows": (seven((SUMS[1], BYTES[1]), 0, 0), "no partial sum in the forward"),
        "a shard": (seven(SUMS, 8, 12), "one rank's shard"),
        "a third": (seven(SUMS, 28 / 3, 20 / 3), "a third of everything"),
        "twice": (seven(SUMS, 56, 40), "counted twice"),
        "bytes": (seven(SUMS, 112, 80), "bytes, not elements"),
        "with the weight": (seven(SUMS, 63, 55), "weight's gradient counted"),
        "twice the tensor": (seven(BYTES, 224, 160), "twice the tensor"),
        "chunks rounded up": (seven(BYTES, 160, 112), "chunks rounded up"),
        "Y and X": (seven(tuple(SEVEN)[:4], 8, 4, 12, 4), "X or Y, not W"),
    },
    "mystery_cut": {
        "the sum's size": ({**MYSTERY, "A: weight": 24}, "the sum, not the weight"),
        "bytes": ({**MYSTERY, "C: weight": 192}, "bytes, not elements"),
        "a fourth cut": ({**MYSTERY, "A: cut": 4}, "wrong number"),
        "all swapped": (
            {**MYSTERY, "A: cut": 1, "C: cut": 2, "D: cut": 1, "E: cut": 2},
            "forward and backward swapped",
        ),
    },
}  # fmt: skip
