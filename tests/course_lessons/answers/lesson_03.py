"""Answers to lesson 03's two functions: right ones in several styles, and likely wrong ones with
the name that each is refused by. Rarer ones stand in `lesson_03_tried.py`.
"""

from __future__ import annotations

from functools import partial

from tests.course_lessons.answers import changed

PAIR = '''
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        total = dy.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class G(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, group):
        y = p.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, dy):
        return dy, None


def conjugates(group):
    """f and g."""
    return lambda x: F.apply(x, group), lambda p: G.apply(p, group)
'''
pair = partial(changed, PAIR)
GATHER = '''
from course_lib.collectives import all_gather, all_reduce, reduce_scatter


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim, sizes, after):
        ctx.group, ctx.dim, ctx.sizes, ctx.after = group, dim, sizes, after
        return all_gather(x, group, dim, sizes)

    @staticmethod
    def backward(ctx, dy):
        if ctx.after == "replicated":
            mine = dy.split(ctx.sizes, ctx.dim)[ctx.group.rank()]
        else:
            mine = reduce_scatter(dy, ctx.group, ctx.dim, ctx.sizes)
        return mine, None, None, None, None


def gather_from(x, group, dim, sizes, after):
    """All pieces, joined."""
    return Gather.apply(x, group, dim, sizes, after)
'''
gather = partial(changed, GATHER)


F_SUM = (
    "        total = dy.clone(memory_format=torch.contiguous_format)\n"
    "        dist.all_reduce(total, group=ctx.group)\n        return total, None\n"
)
G_SUM = (
    "        y = p.clone(memory_format=torch.contiguous_format)\n"
    "        dist.all_reduce(y, group=group)\n        return y\n"
)
HOOK = """
from course_lib.collectives import all_reduce


def conjugates(group):
    def f(x):
        y = x.view_as(x)
        if y.requires_grad:
            y.register_hook(lambda dy: all_reduce(dy, group))
        return y

    def g(p):
        return p + (all_reduce(p.detach(), group) - p.detach())

    return [f, g]
"""
PAIRS = {
    "f hands the gradient on": (
        pair((F_SUM, "        return dy, None\n")),
        "nothing summed on the way back",
    ),
    "the two exchanged": (
        pair(("lambda x: F.apply", "lambda x: G.apply"), ("lambda p: G", "lambda p: F")),
        "swapped",
    ),
    "g sums both ways, as torch's own does": (
        pair(
            ("        y = p", "        ctx.group = group\n        y = p"),
            ("        return dy, None\n", F_SUM),
        ),
        "summed on the way back as well",
    ),
    "g in place": (
        pair(("y = p.clone(memory_format=torch.contiguous_format)", "y = p")),
        "g in place",
    ),
    "g in place where it lies in one block": (
        pair(("p.clone(memory_format=torch.contiguous_format)", "p.contiguous()")),
        "g in place",
    ),
    "f in place": (
        pair(("dy.clone(memory_format=torch.contiguous_format)", "dy")),
        "f in place on the way back",
    ),
    "f in place where it lies in one block": (
        pair(("dy.clone(memory_format=torch.contiguous_format)", "dy.contiguous()")),
        "f in place on the way back",
    ),
    "the mean of gradients": (
        pair(("return total, None", "return total / ctx.group.size(), None")),
        "mean on the way back",
    ),
    "the mean of parts": (
        pair(("        return y\n", "        return y / group.size()\n")),
        "mean",
    ),
    "g divides on the way back": (
        pair(
            ("        y = p", "        ctx.group = group\n        y = p"),
            ("        return dy, None\n", "        return dy / ctx.group.size(), None\n"),
        ),
        "mean on the way back",
    ),
    "g sums nothing": (pair((G_SUM, "        return p.view_as(p)\n")), "nothing summed"),
    "f keeps its ranks in step": (
        pair(
            (
                "        return x.view_as(x)\n",
                "        same = x.clone()\n        dist.all_reduce(same, group=group)\n"
                "        return same / group.size()\n",
            )
        ),
        "unnecessary message",
    ),
    "g checks its gradient": (
        pair(
            ("        y = p", "        ctx.group = group\n        y = p"),
            (
                "        return dy, None\n",
                F_SUM.replace("total, None", "total / ctx.group.size(), None"),
            ),
        ),
        "unnecessary message",
    ),
    "f sums on the way there": (
        pair(
            (
                "        return x.view_as(x)\n",
                "        y = x.clone()\n        dist.all_reduce(y, group=group)\n"
                "        return y\n",
            )
        ),
        "f changes its values",
    ),
    "gathered and added": (
        pair(
            (
                G_SUM,
                "        all_of_them = [torch.empty_like(p) for _ in range(group.size())]\n"
                "        dist.all_gather(all_of_them, p.contiguous(), group=group)\n"
                "        return sum(all_of_them)\n",
            )
        ),
        "more than one all-reduce",
    ),
    "in two halves": (
        pair(
            (
                "        dist.all_reduce(y, group=group)\n",
                "        for half in y.chunk(2):\n            dist.all_reduce(half, group=group)\n",
            )
        ),
        "more than one all-reduce",
    ),
    "cut off from autograd": (
        pair(("lambda x: F.apply(x, group)", "lambda x: x.detach()")),
        "no gradient",
    ),
    "one function": (pair((", lambda p: G.apply(p, group)", "")), "not a pair"),
    "applied to the group": (
        pair(("return lambda x: F.apply(x, group), lambda p: G.apply(p, group)", "F, G")),
        "not a pair",
    ),
    "of half the precision": (
        pair(("        return y\n", "        return y.float()\n")),
        "not like x",
    ),
    "no group": (pair(("dist.all_reduce(y, group=group)", "dist.all_reduce(y)")), "group left out"),
    "only what is in use": (pair(("group=ctx.group", "group=dist.group.WORLD")), "group left out"),
    "the library's": (
        "from course_lib.tensor_parallel import conjugates as made\n\n"
        "def conjugates(group):\n"
        "    return lambda x: made.copy(x, group), lambda p: made.reduce(p, group)\n",
        "ready-made pair",
    ),
    "strides kept": (
        pair(
            (
                "        dist.all_reduce(y, group=group)\n        return y\n",
                "        flat = y.view(-1)\n        dist.all_reduce(flat, group=group)\n"
                "        return flat.as_strided(p.shape, p.stride())\n",
            )
        ),
        "wrong for other layouts",
    ),
    "a hook on whatever comes": (HOOK.replace("        if y.requires_grad:\n    ", ""), "raised"),
    "kept from the first call": (
        pair(
            ('    """f and g."""\n', '    """f and g."""\n    seen = []\n'),
            (
                "lambda p: G.apply(p, group)",
                "lambda p: G.apply(p, group) if p.shape[-1:] != (9,) or seen.append(0) "
                "or len(seen) < 2 else p",
            ),
        ),
        "not the dense net",
    ),
    "no message for a gradient of zeros": (
        pair(("        dist.all_reduce(total", "        dy.any() and dist.all_reduce(total")),
        "raised",
    ),
}
PLAIN_G = pair(
    ("lambda p: G.apply(p, group)", "g\n"),
    (
        "    return lambda x",
        "    def g(p):\n        y = p.contiguous() + 0\n"
        "        dist.all_reduce(y, group=group)\n        return y\n\n    return lambda x",
    ),
)
GATHERS = {
    "its own part, always": (gather(('ctx.after == "replicated"', "True")), "a sum left out"),
    "the sum, always": (gather(('ctx.after == "replicated"', "False")), "copies summed"),
    "exchanged": (gather(('ctx.after == "replicated"', 'ctx.after == "sharded"')), "exchanged"),
    "the mean": (
        gather(("ctx.sizes)\n        return", "ctx.sizes) / ctx.group.size()\n        return")),
        "mean",
    ),
    "the mean of copies": (
        gather(
            ('if ctx.after == "replicated"', "if False"),
            (
                "        return mine",
                '        if ctx.after == "replicated":\n'
                "            mine = mine / ctx.group.size()\n        return mine",
            ),
        ),
        "sent for nothing",
    ),
    "all of the sum, then a piece": (
        gather(
            (
                "reduce_scatter(dy, ctx.group, ctx.dim, ctx.sizes)",
                "all_reduce(dy, ctx.group).split(ctx.sizes, ctx.dim)[ctx.group.rank()]",
            )
        ),
        "more than its piece",
    ),
    "zeros on the way there": (
        gather(
            (
                "return all_gather(x, group, dim, sizes)",
                "parts = [x if r == group.rank() else x.new_zeros(\n"
                "            [k if d == dim % x.dim() else s for d, s in enumerate(x.shape)])\n"
                "            for r, k in enumerate(sizes)]\n"
                "        return all_reduce(torch.cat(parts, dim), group)",
            )
        ),
        "more than the pieces",
    ),
    "even pieces on the way there": (
        gather(("all_gather(x, group, dim, sizes)", "all_gather(x, group, dim)")),
        "sizes not used",
    ),
    "even pieces on the way back": (
        gather(("dy.split(ctx.sizes, ctx.dim)", "dy.chunk(ctx.group.size(), ctx.dim)")),
        "sizes not used",
    ),
    "always along the first dim": (
        gather(("return all_gather(x, group, dim", "return all_gather(x, group, 0")),
        "sizes not used",
    ),
    "the neighbour's piece": (
        gather(("[ctx.group.rank()]", "[ctx.group.rank() - 1]")),
        "a different rank's piece",
    ),
    "no Function": (
        gather(
            (
                "Gather.apply(x, group, dim, sizes, after)",
                "all_gather(x.detach(), group, dim, sizes)",
            )
        ),
        "no gradient",
    ),
    "x kept": (
        gather(("        return all", "        ctx.save_for_backward(x)\n        return all")),
        "kept for nothing",
    ),
    "the notebook's rank": (gather(("[ctx.group.rank()]", "[rank]")), "uses world numbers"),
    "nothing returned": (gather(("return Gather", "Gather")), "nothing returned"),
    "a list of pieces": (
        f"{GATHER}    return [out]\n".replace("    return Gather", "    out = Gather"),
        "not the full tensor",
    ),
    "in the other order": (
        gather(
            (
                "return all_gather(x, group, dim, sizes)",
                "whole = all_gather(x, group, dim, sizes)\n"
                "        return torch.cat(whole.split(sizes, dim)[::-1], dim)",
            )
        ),
        "pieces out of place",
    ),
}
BY_HAND = """
from course_lib.collectives import all_to_all


class Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim, sizes):
        ctx.how = group, dim, sizes
        shapes = [x.narrow(dim, 0, 0).new_empty(
            [k if d == dim % x.dim() else s for d, s in enumerate(x.shape)]) for k in sizes]
        return torch.cat(all_to_all([x] * group.size(), group, like=shapes), dim)


class Alike(Joined):
    @staticmethod
    def backward(ctx, dy):
        group, dim, sizes = ctx.how
        start = sum(sizes[: group.rank()])
        return dy.narrow(dim, start, sizes[group.rank()]), None, None, None


class Apart(Joined):
    @staticmethod
    def backward(ctx, dy):
        group, dim, sizes = ctx.how
        pieces = [one.contiguous() for one in dy.split(sizes, dim)]
        mine = all_to_all(pieces, group, like=[pieces[group.rank()]] * group.size())
        return sum(mine), None, None, None


def gather_from(x, group, dim, sizes, after):
    return {"replicated": Alike, "sharded": Apart}[after].apply(x, group, dim, sizes)
"""

RIGHT: dict = {
    "conjugates": {"two classes": PAIR, "a hook and a detour": HOOK, "torch's sum as g": PLAIN_G},
    "gather_from": {"a class": GATHER, "sent by hand": BY_HAND},
}
WRONG: dict = {"conjugates": PAIRS, "gather_from": GATHERS}
