"""Answers to the functions of lesson 02: right, right by another road, and wrong in likely ways.

`tests/test_checks_02.py` gives them to the checks; each wrong one goes by the name beside it.
"""

from __future__ import annotations

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
STEP = """
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
INIT = """
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
RIGHT = {"cut_gradients": GRADIENTS, "row_step": STEP, "sharded_init": INIT}


def changed(source: str, *pairs: tuple[str, str]) -> str:
    """A right answer with one mistake in it."""
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


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
    "no sum": (changed(GRADIENTS, (SUMMED, "        pass\n")), "sum left out"),
    "the mean": (changed(GRADIENTS, (SUMMED, SUMMED.rstrip() + " / n\n")), "mean"),
    "all of dX summed": (
        changed(GRADIENTS, ('if way == "columns"', "if True")),
        "parts of different things added",
    ),
    "dW summed": (
        changed(GRADIENTS, ("dw = x.T @ dy", "dw = all_reduce(x.T @ dy, group)")),
        "parts of different things added",
    ),
    "dW averaged": (
        changed(GRADIENTS, ("dw = x.T @ dy", "dw = all_reduce(x.T @ dy, group) / n")),
        "parts of different things added",
    ),
    "db summed": (
        changed(
            GRADIENTS,
            ("    return", '    if way == "rows":\n        db = all_reduce(db, group)\n    return'),
        ),
        "counted on every rank",
    ),
    "db a mean over the batch": (
        changed(GRADIENTS, ("dy.sum(0)", "dy.mean(0)")),
        "mean over the rows",
    ),
    "dW transposed": (changed(GRADIENTS, ("x.T @ dy", "dy.T @ x")), "transposed"),
    "another order": (
        changed(GRADIENTS, ("return dx, dw, db", "return dw, dx, db")),
        "in another order",
    ),
    "dX joined": (
        changed(
            GRADIENTS,
            (
                SUMMED,
                SUMMED + "    else:\n        sizes = [None] * n\n"
                "        dist.all_gather_object(sizes, dx.shape[1], group=group)\n"
                "        dx = all_gather(dx, group, 1, sizes)\n",
            ),
        ),
        "whole on every rank",
    ),
    "all gathered": (GATHERS_ALL, "gathered"),
    "parts gathered, then summed": (
        changed(
            GRADIENTS,
            (SUMMED, "        dx = all_gather(dx[None].clone(), group).sum(0)\n"),
        ),
        "gathered",
    ),
    "a sum that undoes itself": (
        changed(
            GRADIENTS,
            (
                "n = group.size()",
                'n = group.size()\n    if way == "rows":\n        dy = all_reduce(dy, group) / n',
            ),
        ),
        "sent for nothing",
    ),
    "summed twice": (
        changed(GRADIENTS, (SUMMED, SUMMED + "        dx = all_reduce(dx, group) / n\n")),
        "over budget",
    ),
    "into the memory of X": (
        changed(GRADIENTS, ("    db = dy", "    dx = x.copy_(dx)\n    db = dy")),
        "input changed",
    ),
    "downhill already": (changed(GRADIENTS, ("db = dy", "db = -dy")), "sign"),
    "by autograd": (
        changed(
            GRADIENTS,
            (
                "dx = dy @ weight.T",
                "x = x.clone().requires_grad_()\n    y = x @ weight\n"
                "    y.backward(dy)\n    dx = x.grad",
            ),
        ),
        "autograd",
    ),
    "two of three": (
        changed(GRADIENTS, ("return dx, dw, db", "return dx, dw")),
        "not these tensors",
    ),
    "one of them missing": (
        changed(GRADIENTS, ("return dx, dw, db", "return dx, dw, None")),
        "not these tensors",
    ),
    "nothing returned": (changed(GRADIENTS, ("return dx", "dx")), "nothing returned"),
    "half the precision": (
        changed(GRADIENTS, ("return dx,", "return dx.float(),")),
        "another dtype",
    ),
    "the notebook's own group": (
        changed(GRADIENTS, (SUMMED, "        dist.all_reduce(dx)\n")),
        "group left out",
    ),
}

WRONG_STEPS = {
    "added before the sum": (
        changed(
            STEP, ("x @ weight, group", "x @ weight + bias, group"), ("    y = y + bias\n", "")
        ),
        "bias added on every rank",
    ),
    "forgotten": (changed(STEP, ("    y = y + bias\n", "")), "bias left out"),
    "added on rank 0 alone, after the sum": (
        changed(STEP, ("y = y + bias", "y = y + bias if me == 0 else y")),
        "bias left out",
    ),
    "rank 0 keeps and trains it": (
        changed(
            STEP,
            ("x @ weight, group", "x @ weight + (bias if me == 0 else 0), group"),
            ("    y = y + bias\n", ""),
            ("bias = bias - lr * db", "bias = bias - lr * db if me == 0 else bias"),
        ),
        "bias trained on some ranks",
    ),
    "its gradient summed": (
        changed(STEP, ("db = dy.sum(0)", "db = all_reduce(dy.sum(0), group)")),
        "bias trained N times as fast",
    ),
    "shared out": (
        changed(
            STEP,
            ("x @ weight, group", "x @ weight + bias / n, group"),
            ("    y = y + bias\n", ""),
            ("db = dy.sum(0)", "db = dy.sum(0) / n"),
        ),
        "bias trained N times as slowly",
    ),
    "never trained": (changed(STEP, ("    bias = bias - lr * db\n", "")), "bias not trained"),
    "cut like the weight": (
        changed(
            STEP,
            (
                "bias = bias - lr * db",
                "own = slice(me * len(db) // n, (me + 1) * len(db) // n)\n"
                "    bias = bias.clone()\n    bias[own] -= lr * db[own]",
            ),
        ),
        "bias cut",
    ),
    "a part of it returned": (
        changed(STEP, ("return y, weight, bias", "return y, weight, bias[: 1 + len(bias) // n]")),
        "bias cut",
    ),
    "no sum": (changed(STEP, ("all_reduce(x @ weight, group)", "x @ weight")), "sum left out"),
    "the mean of the parts": (
        changed(STEP, ("all_reduce(x @ weight, group)", "all_reduce(x @ weight, group) / n")),
        "mean",
    ),
    "dW summed": (
        changed(STEP, ("dw = x.T @ dy", "dw = all_reduce(x.T @ dy, group)")),
        "parts of different things added",
    ),
    "the loss not halved": (
        changed(STEP, ("dy = y - target", "dy = 2 * (y - target)")),
        "another step",
    ),
    "uphill": (changed(STEP, ("weight - lr", "weight + lr")), "uphill"),
    "the weight as it was": (
        changed(STEP, ("return y, weight, bias", "return y, weight + lr * dw, bias")),
        "weight not trained",
    ),
    "kept alike by a mean": (
        changed(STEP, ("    return", "    bias = all_reduce(bias, group) / n\n    return")),
        "over budget",
    ),
    "target as scratch": (
        changed(STEP, ("dy = y - target", "dy = target.neg_().add_(y)")),
        "input changed",
    ),
    "bias on one rank only": (
        changed(STEP, ("return y, weight, bias", "return y, weight, bias if me == 0 else None")),
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
    "a part from one seed": (
        DRAWS_A_PART.replace("SEED", "pass"),
        "same numbers on every rank",
    ),
    "a part from a seed for each rank": (
        DRAWS_A_PART.replace("SEED", "torch.manual_seed(torch.initial_seed() + me)"),
        "a seed for each rank",
    ),
    "the whole from a seed for each rank": (
        changed(
            INIT, ("    dense", "    torch.manual_seed(100 * me + torch.initial_seed())\n    dense")
        ),
        "a seed for each rank",
    ),
    "the bound of the part": (
        UNIFORM.replace("BOUND", "(h if way == 'columns' else h / n) ** -0.5"),
        "fan-in of the part",
    ),
    "the bound of both ends": (UNIFORM.replace("BOUND", "(6 / (h + f)) ** 0.5"), "another scale"),
    "normal": (
        UNIFORM.replace("BOUND", "1").replace(
            "torch.empty(f, h).uniform_(-bound, bound)", "torch.randn(f, h)"
        ),
        "another distribution",
    ),
    "rank 0's to all": (
        changed(
            INIT,
            (
                "    if way",
                "    if way == 'columns':\n"
                "        mine = weight[slice(*span(f, n, me))].clone()\n"
                "        return broadcast(mine, group), bias[: f // n].clone()\n"
                "    if way",
            ),
        ),
        "rank 0's part everywhere",
    ),
    "bias first": (
        UNIFORM.replace("BOUND", "h**-0.5").replace(DRAWN[0] + DRAWN[1], DRAWN[1] + DRAWN[0]),
        "other numbers",
    ),
    "bias of its own": (
        changed(INIT, ("    if way", "    bias = torch.nn.Linear(h, f).bias.detach()\n    if way")),
        "bias drawn otherwise",
    ),
    "no bias": (changed(INIT, (", dense.bias.detach()", ", torch.zeros(f)")), "zeros"),
    "another bias on each rank": (
        changed(INIT, ("weight[:, own].clone(), bias", "weight[:, own].clone(), bias.roll(me)")),
        "bias differs by rank",
    ),
    "a seed of its own": (
        changed(INIT, ("    dense", "    torch.manual_seed(0)\n    dense")),
        "other numbers",
    ),
    "drawn on rank 0 and sent": (
        changed(INIT, ("    if way", "    weight = broadcast(weight, group)\n    if way")),
        "sent",
    ),
    "under a generator of its own": (
        changed(
            INIT, ("    dense = torch", "    with torch.random.fork_rng():\n        dense = torch")
        ),
        "generator out of step",
    ),
    "a little more on some ranks": (
        changed(INIT, ("    if way", "    torch.rand(me)\n    if way")),
        "generator out of step",
    ),
    "generator put back": (
        changed(
            INIT,
            ("    dense", "    state = torch.get_rng_state()\n    dense"),
            ("    if way", "    torch.set_rng_state(state)\n    if way"),
        ),
        "generator out of step",
    ),
    "a view": (changed(INIT, ("weight[own].clone()", "weight[own]")), "whole kept alive"),
    "a view of columns": (
        changed(INIT, ("weight[:, own].clone()", "weight[:, own]")),
        "whole kept alive",
    ),
    "the whole": (
        changed(INIT, ("return weight[:, own].clone(), bias", "return weight, bias")),
        "whole on every rank",
    ),
    "[h, f]": (
        changed(INIT, ("weight[own].clone()", "weight[own].T.clone()")),
        "transposed",
    ),
    "evenly": (
        changed(
            INIT, ("own = slice(*span(h, n, me))", "own = slice(me * h // n, (me + 1) * h // n)")
        ),
        "wrong shape",
    ),
}
WRONG = [
    (name, how, source, called)
    for name, answers in (
        ("cut_gradients", WRONG_GRADIENTS),
        ("row_step", WRONG_STEPS),
        ("sharded_init", WRONG_INITS),
    )
    for how, (source, called) in answers.items()
]
# Other roads to what is right.
ALSO_RIGHT = {
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
        changed(
            GRADIENTS,
            (SUMMED, "        dist.all_reduce(dx, group=group)\n"),
            ("return dx, dw, db", "return [dx, dw, db]"),
        ),
    ),
    "einsum": (
        "cut_gradients",
        changed(GRADIENTS, ("x.T @ dy", "torch.einsum('bh,bf->hf', x, dy)")),
    ),
    "on rank 0, before the sum": (
        "row_step",
        changed(
            STEP,
            ("x @ weight, group", "x @ weight + (bias if me == 0 else 0), group"),
            ("    y = y + bias\n", ""),
        ),
    ),
    "an n-th on each rank, before the sum": (
        "row_step",
        changed(
            STEP, ("x @ weight, group", "x @ weight + bias / n, group"), ("    y = y + bias\n", "")
        ),
    ),
    "weight and bias changed in place": (
        "row_step",
        changed(
            STEP,
            ("weight = weight - lr * dw", "weight -= lr * dw"),
            ("bias = bias - lr * db", "bias -= lr * db"),
        ),
    ),
    "drawn by hand": ("sharded_init", UNIFORM.replace("BOUND", "h**-0.5")),
    "parameters": (
        "sharded_init",
        changed(
            INIT,
            (
                "return weight[:, own].clone(), bias",
                "return torch.nn.Parameter(weight[:, own].clone()), dense.bias",
            ),
        ),
    ),
}
