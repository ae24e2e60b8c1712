"""Answers to lesson 04's exercises: right ones, and likely wrong ones with the name that each is
refused by. More stand in `lesson_04.py`, and for five_to_two in `lesson_04_five.py`.
"""

from __future__ import annotations

from tests.course_lessons.answers import changed

HEAD = """import torch.nn.functional as F

from course_lib.layout import span
from course_lib.tensor_parallel.conjugates import copy, gather, reduce, split


"""
FIVE = (
    HEAD
    + """def five_to_two(x, gate, up, down, bias, group):
    entered = copy(x, group)
    inner = F.silu(entered @ gate.t()) * (entered @ up.t())
    return reduce(inner @ down.t(), group) + bias
"""
)
ENTER, WAY = "    entered = copy(x, group)\n", "F.silu(entered @ gate.t()) * (entered @ up.t())"
LEAVE = "    return reduce(inner @ down.t(), group) + bias\n"
PAIR = """class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        dy = dy.contiguous()  # of two products: no other step holds it
        dist.all_reduce(dy, group=ctx.group)
        return dy, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, group):
        p = p.contiguous().clone()
        dist.all_reduce(p, group=group)
        return p

    @staticmethod
    def backward(ctx, dy):
        return dy, None
"""
OWN = """def five_to_two(x, gate, up, down, bias, group):
    x = Enter.apply(x, group)
    inner = torch.nn.functional.silu(x @ gate.t()) * (x @ up.t())
    return torch.add(bias, Leave.apply(inner @ down.t(), group))
"""
PLAIN_SUM = """    y = inner @ down.t()
    dist.all_reduce(y.detach(), group=group)
    return y + bias
"""
WHOLE = """KEPT = {}


class MLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate, up, down, bias, group):
        KEPT["of the forward"] = x, gate, up, down, group
        y = (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
        dist.all_reduce(y, group=group)
        return y + bias

    @staticmethod
    def backward(ctx, dy):
        *tensors, group = KEPT["of the forward"]
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in tensors]
            x, gate, up, down = leaves
            y = (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
        dx, *rest = torch.autograd.grad(y, leaves, dy)
        dx = dx.contiguous()
        dist.all_reduce(dx, group=group)
        return dx, *rest, dy.sum((0, 1)), None


def five_to_two(x, gate, up, down, bias, group):
    return MLP.apply(x, gate, up, down, bias, group)
"""
FUSE = (
    HEAD
    + """def fuse_gate_up(gate, up, group):
    a, z = span(len(gate), group.size(), group.rank())
    return torch.cat((gate[a:z], up[a:z]))
"""
)
SPAN = "    a, z = span(len(gate), group.size(), group.rank())\n"
JOIN = "torch.cat((gate[a:z], up[a:z]))"


def five(*pairs: tuple[str, str]) -> str:
    return changed(FIVE, *pairs)


def fuse(*pairs: tuple[str, str]) -> str:
    return changed(FUSE, *pairs)


RIGHT: dict = {
    "five_to_two": {
        "an f and a g in another cell": [PAIR, OWN],
        "a plain sum of what only this rank has": five((LEAVE, PLAIN_SUM)),
    },
    "fuse_gate_up": {
        "row by row": fuse(
            (
                f"    return {JOIN}",
                "    rows = [t[i] for t in (gate, up) for i in range(a, z)]\n"
                "    return torch.stack(rows) if rows else gate[:0].clone()",
            )
        ),
        "a helper": [
            "def piece(t, n, r):\n    k = -(-len(t) // n)\n    return t[r * k : (r + 1) * k]\n",
            "fuse_gate_up = lambda gate, up, group: torch.cat(\n"
            "    [piece(t, group.size(), group.rank()) for t in (gate, up)])\n",
        ],
    },
}
WRONG: dict = {
    "five_to_two": {
        "an empty rank goes its own way": (
            five((ENTER, f"    if len(gate) == 0:\n        return bias.expand(x.shape)\n{ENTER}")),
            "left out by an empty rank",
        ),
        "the forward's tensors in a global name": (WHOLE, "several calls at once"),
        "a fused weight for each parameter": (
            "FUSED = {}\n\n\n"
            + five(
                (
                    f"    inner = {WAY}\n",
                    "    if id(gate) not in FUSED:\n"
                    "        FUSED[id(gate)] = gate, torch.cat((gate, up))\n"
                    "    left, right = (entered @ FUSED[id(gate)][1].t()).chunk(2, -1)\n"
                    "    inner = F.silu(left) * right\n",
                )
            ),
            "wrong second step",
        ),
        "a double comes back": (
            five((LEAVE, "    return reduce((inner @ down.t()).double(), group) + bias\n")),
            "wrong shape",
        ),
        "a fused weight for each size": (
            "FUSED = {}\n\n\n"
            + five(
                (
                    f"    inner = {WAY}\n",
                    "    fused = FUSED.setdefault(gate.shape, torch.cat((gate, up)).detach())\n"
                    "    left, right = (entered @ fused.t()).chunk(2, -1)\n"
                    "    inner = F.silu(left) * right\n",
                )
            ),
            "weights left out",
        ),
        "the group on the class": (
            [PAIR.replace("ctx.group", "Enter.group"), OWN],
            "several calls at once",
        ),
        "a share of dX": (
            [PAIR.replace("return dy, None", "return dy / ctx.group.size(), None", 1), OWN],
            "a mean over the ranks",
        ),
        "a sum through float32": (
            five((LEAVE, "    return reduce((inner @ down.t()).float(), group).to(x) + bias\n")),
            "rounded on the way",
        ),
        "not waited for": (
            [PAIR.replace("(p, group=group)", "(p, group=group, async_op=True)"), OWN],
            "not waited for",
        ),
        "a sparse output": (
            five((") + bias\n", ") + bias).to_sparse()\n"), ("return r", "return (r")),
            "wrong shape",
        ),
    },
    "fuse_gate_up": {
        "torch.chunk": (
            fuse(
                (SPAN, ""),
                (JOIN, "torch.cat([t.chunk(group.size())[group.rank()] for t in (gate, up)])"),
            ),
            "no rows for a rank",
        ),
        "both kept in a name": (
            "FULL = []\n\n\n" + fuse((SPAN, f"{SPAN}    FULL.append((gate, up))\n")),
            "keeps the full tensors alive",
        ),
        "the span of an earlier call": (
            "SPANS = {}\n\n\n"
            + fuse(
                (
                    SPAN,
                    f"    a, z = SPANS.setdefault(len(gate), {SPAN.partition(' = ')[2].strip()})\n",
                )
            ),
            "kept from an earlier call",
        ),
        "through float32": (fuse((JOIN, f"{JOIN}.float().to(gate.dtype)")), "rounded on the way"),
        "zero added": (fuse((JOIN, f"{JOIN} + 0")), "different training"),
        "infinities cut off": (fuse((JOIN, f"torch.nan_to_num({JOIN})")), "different training"),
        "divided and multiplied": (fuse((JOIN, f"{JOIN} / 7 * 7")), "computed, not copied"),
        "kept by the history": (
            fuse(
                (
                    f"    return {JOIN}",
                    "    f, both = len(gate), torch.cat((gate, up)).requires_grad_()\n"
                    "    return torch.cat((both[a:z], both[f + a : f + z]))",
                )
            ),
            "keeps the full tensors alive",
        ),
        "kept on the result": (
            fuse((f"    return {JOIN}", f"    out = {JOIN}\n    out.gate = gate\n    return out")),
            "keeps the full tensors alive",
        ),
        "one buffer for each shape": (
            "BUFFERS = {}\n\n\n"
            + fuse(
                (
                    f"    return {JOIN}",
                    f"    out = {JOIN}\n    key = out.shape, out.dtype\n"
                    "    return BUFFERS.setdefault(key, out).copy_(out)",
                )
            ),
            "one buffer for all",
        ),
        "float64 for all": (fuse((JOIN, f"{JOIN}.double()")), "wrong dtype"),
        "filled up with zeros": (
            fuse(
                (
                    f"    return {JOIN}",
                    "    k = -(-len(gate) // group.size())\n"
                    "    out = gate.new_zeros((2 * k, *gate.shape[1:]))\n"
                    "    out[: z - a], out[k : k + z - a] = gate[a:z], up[a:z]\n"
                    "    return out",
                )
            ),
            "padded",
        ),
        "nothing for an empty rank": (
            fuse((SPAN, f"{SPAN}    if a == z:\n        return None\n")),
            "no rows for a rank",
        ),
        "on meta": (fuse((JOIN, f"{JOIN}.to('meta')")), "no tensor"),
    },
}
