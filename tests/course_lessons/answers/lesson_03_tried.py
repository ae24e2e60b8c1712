"""Answers to lesson 03's exercises: right ones, and likely wrong ones with the name that each is
refused by. The likeliest stand in `lesson_03.py`.
"""

from __future__ import annotations

from functools import partial

from tests.course_lessons.answers import changed

CLOSURES = """def conjugates(group):
    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, dy):
            total = dy.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(ctx, p):
            out = p.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(out, group=group)
            return out

        @staticmethod
        def backward(ctx, dy):
            return dy

    return Enter.apply, Leave.apply
"""
closures = partial(changed, CLOSURES)
CONJUGATES = """class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return Leave.apply(dy, ctx.group), None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, group):
        ctx.group = group
        out = torch.empty(p.shape, dtype=p.dtype, device=p.device).copy_(p)
        dist.all_reduce(out, group=group, async_op=True).wait()
        return out

    @staticmethod
    def backward(ctx, dy):
        return Enter.apply(dy, ctx.group), None
"""
LAMBDAS = """def conjugates(group):
    return [lambda x, step=step: step.apply(x, group) for step in (Enter, Leave)]
"""
ENTER, LEAVE = (f"{name}.clone(memory_format=torch.contiguous_format)" for name in ("dy", "p"))
BOTH = "    return Enter.apply, Leave.apply\n"
START = "def conjugates(group):\n"
BUFFER = ".setdefault(({0}.shape, {0}.dtype), torch.empty({0}.shape, dtype={0}.dtype)).copy_({0})"

GATHER = """from course_lib.collectives import all_gather, all_reduce, reduce_scatter


class Gathering(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim, sizes, after):
        ctx.rest = group, dim, sizes, after
        return all_gather(x, group, dim, sizes)

    @staticmethod
    def backward(ctx, dy):
        group, dim, sizes, after = ctx.rest
        if after == "replicated":
            dx = dy.split(sizes, dim)[group.rank()]
        else:
            dx = reduce_scatter(dy, group, dim, sizes)
        return dx, None, None, None, None


def gather_from(x, group, dim, sizes, after):
    return Gathering.apply(x, group, dim, sizes, after)
"""
gather = partial(changed, GATHER)
OWN = "dx = dy.split(sizes, dim)[group.rank()]"
SCATTER = "dx = reduce_scatter(dy, group, dim, sizes)"
THERE = "return all_gather(x, group, dim, sizes)"
REST = "        ctx.rest = group, dim, sizes, after\n"
APPLY = "    return Gathering.apply(x, group, dim, sizes, after)\n"
GIVEN = "        group, dim, sizes, after = ctx.rest\n"
LOCAL = """from course_lib.collectives import all_gather, reduce_scatter


def gather_from(x, group, dim, sizes, after):
    dim, start = dim % x.dim(), sum(sizes[: group.rank()])

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return all_gather(x, group, dim, sizes)

        @staticmethod
        def backward(ctx, dy):
            if after == "sharded":
                return reduce_scatter(dy, group, dim, sizes)
            return dy.narrow(dim, start, sizes[group.rank()]).clone()

    return Step.apply(x)
"""
PADDED = """
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim, sizes, after):
        ctx.group, ctx.dim, ctx.sizes, ctx.after = group, dim, sizes, after
        m = max(sizes)
        shape = list(x.shape); shape[dim] = m
        padded = x.new_zeros(shape)
        padded.narrow(dim, 0, x.shape[dim]).copy_(x)
        out = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(out, padded, group=group)
        return torch.cat([o.narrow(dim, 0, s) for o, s in zip(out, sizes)], dim)

    @staticmethod
    def backward(ctx, dy):
        if ctx.after == "replicated":
            mine = dy.split(ctx.sizes, ctx.dim)[ctx.group.rank()].contiguous()
        else:
            parts = dy.split(ctx.sizes, ctx.dim)
            m = max(ctx.sizes)
            shape = list(dy.shape); shape[ctx.dim] = m
            big = []
            for p in parts:
                big.append(dy.new_zeros(shape))
                big[-1].narrow(ctx.dim, 0, p.shape[ctx.dim]).copy_(p)
            mine = torch.empty_like(big[0])
            dist.reduce_scatter(mine, big, group=ctx.group)
            mine = mine.narrow(ctx.dim, 0, ctx.sizes[ctx.group.rank()]).contiguous()
        return mine, None, None, None, None


def gather_from(x, group, dim, sizes, after):
    return Gather.apply(x, group, dim, sizes, after)
"""
RIGHT: dict = {
    "conjugates": {
        "classes of one call": CLOSURES,
        "two that call each other": [CONJUGATES, LAMBDAS],
        "nothing to do without a gradient": closures(
            (BOTH, "    return lambda x: Enter.apply(x) if x.requires_grad else x, Leave.apply\n")
        ),
    },
    "gather_from": {
        "a local class": LOCAL,
        "padded to the longest": PADDED,
        "without a Function where no gradient is wanted": gather(
            (APPLY, f"    if not x.requires_grad:\n        {THERE}\n{APPLY}")
        ),
    },
}
WRONG: dict = {
    "conjugates": {
        "the group in a global name": (
            "GROUP = None\n\n\n"
            + closures((START, f"{START}    global GROUP\n    GROUP = group\n")).replace(
                "group=group)", "group=GROUP)"
            ),
            "several calls at once",
        ),
        "rows and columns": (
            closures(("return x.view_as(x)", "return x.reshape(-1, x.shape[-1]).reshape(x.shape)")),
            "wrong for other shapes",
        ),
        "in place where no gradient is wanted": (
            closures(
                (LEAVE, "p"),
                (
                    BOTH,
                    "    def g(p):\n        return Leave.apply(p.clone() if p.requires_grad else p)"
                    "\n\n    return Enter.apply, g\n",
                ),
            ),
            "g in place",
        ),
        "strides of its own on each rank": (
            closures((LEAVE, "p.clone()")),
            "wrong for other layouts",
        ),
        "a pair kept in a default argument": (
            closures(
                (START, "def conjugates(group, made=[]):\n    if made:\n        return made[0]\n"),
                (BOTH, "    made.append((Enter.apply, Leave.apply))\n    return made[0]\n"),
            ),
            "several calls at once",
        ),
        "a pair kept for each size": (
            "MADE = {}\n\n\n"
            + closures(
                (BOTH, "    return MADE.setdefault(group.size(), (Enter.apply, Leave.apply))\n")
            ),
            "several calls at once",
        ),
        "one buffer for gradients": (
            closures(
                (START, f"{START}    buffers = {{}}\n"), (ENTER, "buffers" + BUFFER.format("dy"))
            ),
            "one buffer for all",
        ),
        "float64 for all": (closures((LEAVE, "p.double().contiguous().clone()")), "wrong dtype"),
        "through float32": (
            closures((LEAVE, "p.float()"), ("return out", "return out.to(p.dtype)")),
            "rounded on the way",
        ),
        "x emptied": (
            closures(
                (
                    "return x.view_as(x)",
                    "y = x.clone()\n            x.zero_()\n            return y",
                )
            ),
            "f in place",
        ),
        "a hook on x itself": (
            closures(
                (
                    BOTH,
                    "    def f(x):\n        x.register_hook(lambda dy: Leave.apply(dy))\n"
                    "        return x\n\n    return f, Leave.apply\n",
                )
            ),
            "a hook on x itself",
        ),
        "in place, and autograd is told": (
            closures(
                (f"out = {LEAVE}", "ctx.mark_dirty(p)"),
                ("(out, group", "(p, group"),
                ("return out", "return p"),
            ),
            "g in place",
        ),
        "a sparse sum": (closures(("return out", "return out.to_sparse()")), "not like x"),
    },
    "gather_from": {
        "the whole on ctx": (
            gather((THERE, THERE.replace("return", "ctx.whole =") + "\n        return ctx.whole")),
            "kept for nothing",
        ),
        "x on ctx": (gather((REST, f"{REST}        ctx.x = x\n")), "kept for nothing"),
        "an empty rank goes its own way": (
            gather(
                (
                    SCATTER,
                    "dx = dy.narrow(dim, 0, 0) if sizes[group.rank()] == 0 else "
                    "reduce_scatter(dy, group, dim, sizes)",
                )
            ),
            "left out by an empty rank",
        ),
        "the consumer in a global name": (
            "AFTER = []\n\n\n"
            + gather(
                (APPLY, f"    AFTER[:] = [after]\n{APPLY}"),
                (GIVEN, f"{GIVEN}        after = AFTER[0]\n"),
            ),
            "several calls at once",
        ),
        "sizes used up": (
            gather(
                (
                    APPLY,
                    "    whole = Gathering.apply(x, group, dim, list(sizes), after)\n"
                    "    sizes.clear()\n    return whole\n",
                )
            ),
            "input changed",
        ),
        "x in a closure": (
            changed(
                LOCAL, ("sizes[group.rank()]).clone()", "sizes[group.rank()]).reshape(x.shape)")
            ),
            "kept for nothing",
        ),
        "one buffer for each shape": (
            "BUFFERS = {}\n\n\n"
            + gather(
                (
                    THERE,
                    "whole = all_gather(x, group, dim, sizes)\n"
                    "        key = whole.shape, whole.dtype\n"
                    "        mine = BUFFERS.setdefault(key, torch.empty_like(whole))\n"
                    "        return mine.copy_(whole).view_as(whole)",
                )
            ),
            "kept for nothing",
        ),
        "a place from the first length": (
            gather(
                (
                    OWN,
                    "own = sizes[group.rank()]\n"
                    "            start = min(group.rank() * sizes[0], sum(sizes) - own)\n"
                    "            dx = dy.narrow(dim, start, own)",
                )
            ),
            "gradient of the pieces",
        ),
        "slices of a negative dim": (
            gather(
                (
                    OWN,
                    "start = sum(sizes[: group.rank()])\n"
                    "            own = slice(start, start + sizes[group.rank()])\n"
                    "            dx = dy[(slice(None),) * dim + (own,)]",
                )
            ),
            "sizes not used",
        ),
        "the gradient written over": (
            gather((SCATTER, f"{SCATTER}\n            dy.zero_()")),
            "gradient overwritten",
        ),
    },
}
