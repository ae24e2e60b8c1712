"""Answers to `sequence_mlp` of lesson 06."""

from tests.course_lessons.answers import changed

HALF = '''
import torch.nn.functional as F
from course_lib.tensor_parallel.conjugates import copy, gather, reduce, reduce_scatter, split


def sequence_mlp(x, weight, up, down, bias, sizes, group):
    """By the pairs of lesson 03."""
    normed = F.rms_norm(x, x.shape[-1:], copy(weight, group), 1e-5)
    every = gather(normed, group, 1, sizes, after="sharded")
    owed = F.gelu(every @ up.t()) @ down.t()
    return x + reduce_scatter(owed, group, 1, sizes) + copy(bias, group)
'''
# X is gathered again in the backward, and one message carries both sums.
AGAIN = """
import torch.nn.functional as F
from course_lib.tensor_parallel.sequence import gathered_products, scattered_product, shared_once


def sequence_mlp(x, weight, up, down, bias, sizes, group):
    weight, bias = shared_once(weight, bias, group=group)
    normed = F.rms_norm(x, x.shape[-1:], weight, 1e-5)
    (wide,) = gathered_products(normed, [up], [None], group, sizes, keep=False)
    return x + scattered_product(F.gelu(wide), down, None, group, sizes) + bias
"""
# By hand: a function whose backward is written out, torch's own collectives on padded pieces.
BY_HAND = """
import torch.nn.functional as F
from course_lib import collectives


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, up, down, bias, sizes, group):
        scale = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        every = collectives.all_gather(x * scale * weight, group, 1, sizes)
        wide = every @ up.t()
        ctx.save_for_backward(x, weight, up, down, every, wide)
        ctx.sizes, ctx.group = sizes, group
        owed = F.gelu(wide) @ down.t()
        return x + collectives.reduce_scatter(owed, group, 1, sizes) + bias

    @staticmethod
    def backward(ctx, dy):
        x, weight, up, down, every, wide = ctx.saved_tensors
        whole = collectives.all_gather(dy, ctx.group, 1, ctx.sizes)
        with torch.enable_grad():
            leaf = wide.detach().requires_grad_()
            bent = F.gelu(leaf)
        (dwide,) = torch.autograd.grad(bent, leaf, whole @ down)
        ddown = torch.einsum("bsh,bsf->hf", whole, bent.detach())
        dup = torch.einsum("bsf,bsh->fh", dwide, every)
        dn = collectives.reduce_scatter(dwide @ up, ctx.group, 1, ctx.sizes)
        with torch.enable_grad():
            own, w = x.detach().requires_grad_(), weight.detach().requires_grad_()
            n = F.rms_norm(own, own.shape[-1:], w, 1e-5)
        dx, dw = torch.autograd.grad(n, (own, w), dn)
        dw = collectives.all_reduce(dw, ctx.group)
        return dx + dy, dw, dup, ddown, whole.sum((0, 1)), None, None


def sequence_mlp(x, weight, up, down, bias, sizes, group):
    return Half.apply(x, weight, up, down, bias, sizes, group)
"""
# Each rank adds its share of the bias before the sum.
SHARED_OUT = changed(
    HALF,
    (" + copy(bias, group)\n", "\n"),
    ("@ down.t()\n", "@ down.t() + copy(bias, group) / group.size()\n"),
)


def half(*changes: tuple[str, str]) -> str:
    return changed(HALF, *changes)


EMPTY = ("    normed = F", "    if not x.numel():\n        return x\n    normed = F")
SCATTERED = "reduce_scatter(owed, group, 1, sizes)"
WRONG_HALF = {
    "bias before the sum": (
        half(
            (" + copy(bias, group)\n", "\n"), ("@ down.t()\n", "@ down.t() + copy(bias, group)\n")
        ),
        "bias n times",
    ),
    "weight not summed": (
        half(("copy(weight, group)", "weight")),
        "replicated gradient not summed",
    ),
    "gathered as if all did the same": (
        half(("sharded", "replicated")),
        "the other backward of a gather",
    ),
    "all tokens returned": (
        half(
            ("    return x", "    y = x"),
            (
                "+ copy(bias, group)\n",
                '+ copy(bias, group)\n    return gather(y, group, 1, sizes, after="replicated")\n',
            ),
        ),
        "all tokens",
    ),
    "no bias": (half((" + copy(bias, group)", "")), "bias left out"),
    "residual before the sum": (
        half(
            ("    owed = ", '    all_x = gather(x, group, 1, sizes, after="sharded")\n    owed = '),
            ("@ down.t()\n", "@ down.t() + all_x\n"),
            ("return x + ", "return "),
        ),
        "residual n times",
    ),
    "no residual": (half(("return x + ", "return ")), "residual left out"),
    "mean": (half((SCATTERED, SCATTERED + " / group.size()")), "mean"),
    "nothing sent": (
        half(('gather(normed, group, 1, sizes, after="sharded")', "normed"), (SCATTERED, "owed")),
        "only own columns",
    ),
    "cut without a sum": (half((SCATTERED, "split(owed, group, 1, sizes)")), "only own columns"),
    "no norm": (
        half(("F.rms_norm(x, x.shape[-1:], copy(weight, group), 1e-5)", "x")),
        "norm left out",
    ),
    "norm without its weight": (
        half(("copy(weight, group), 1e-5", "None, 1e-5")),
        "weight left out",
    ),
    "wrong activation function": (half(("F.gelu(", "F.relu(")), "wrong output"),
    "bias not summed": (half(("copy(bias, group)", "bias")), "replicated gradient not summed"),
    "neither summed": (
        half(("copy(weight, group)", "weight"), ("copy(bias, group)", "bias")),
        "replicated gradient not summed",
    ),
    "summed twice": (
        half(("copy(weight, group), 1", "copy(copy(weight, group), group), 1")),
        "n times",
    ),
    "sent without a graph": (
        half(
            ("import copy, gather, reduce, reduce_scatter, split", "import copy"),
            (
                "import torch.nn",
                "from course_lib.collectives import all_gather, reduce_scatter\nimport torch.nn",
            ),
            (
                'gather(normed, group, 1, sizes, after="sharded")',
                "all_gather(normed.detach(), group, 1, sizes)",
            ),
            ("scatter(owed, ", "scatter(owed.detach(), "),
        ),
        "no gradient",
    ),
    "all-reduce, then split": (
        half((SCATTERED, "split(reduce(owed, group), group, 1, sizes)")),
        "all-reduce, then split",
    ),
    "gathered for each": (
        half(
            (
                "    owed = F",
                '    more = gather(normed, group, 1, sizes, after="sharded")\n    owed = F',
            ),
            ("every @ up.t()", "(every + more) / 2 @ up.t()"),
        ),
        "gathered twice",
    ),
    "three sums of two": (
        half(
            ("copy(weight, group)", "torch.cat((copy(weight[:3], group), copy(weight[3:], group)))")
        ),
        "more bytes",
    ),
    "three sums": (half(("return x + ", "return copy(bias * 0, group) + x + ")), "more bytes"),
    "norm behind the gather": (
        half(
            ("    normed = F.rms_norm(x, x.shape[-1:], copy(weight, group), 1e-5)\n", ""),
            ("gather(normed, group", "gather(x, group"),
            (
                "    owed",
                "    every = F.rms_norm(every, x.shape[-1:], copy(weight, group), 1e-5)\n    owed",
            ),
        ),
        "all tokens kept",
    ),
    "a copy kept on the side": (
        half(
            ("    return x", "    kept.append(every.detach().clone())\n    return x"),
            ("def sequence", "kept = []\n\n\ndef sequence"),
        ),
        "all tokens kept",
    ),
    "in place": (
        half(("    normed = ", "    x.data += 1\n    x = x - 1\n    normed = ")),
        "input changed",
    ),
    "the notebook's rank": (
        half(
            (
                "    return x + ",
                "    whole = reduce(owed, group)\n    first = sum(sizes[:rank])\n    return x + ",
            ),
            (SCATTERED, "whole[:, first : first + sizes[min(rank, len(sizes) - 1)]]"),
        ),
        "uses world numbers",
    ),
    "nothing returned": (half(("    return x", "    x")), "nothing returned"),
    "the first step remembered": (
        half(
            ("def sequence", "first = {}\n\n\ndef sequence"),
            ("    normed = ", "    up = first.setdefault(group, up)\n    normed = "),
        ),
        "wrong second step",
    ),
    "sizes left to cut": (half((", group, 1, sizes)", ", group, 1)")), "wrong shape"),
    "no activation": (half(("F.gelu(every @ up.t())", "(every @ up.t())")), "activation left out"),
    "GELU by tanh": (half(("up.t())", "up.t(), approximate='tanh')")), "GELU by tanh"),
    "GELU after the sum": (
        half(
            ("F.gelu(every @ up.t()) @ down.t()", "every @ up.t() @ down.t()"),
            (SCATTERED, f"F.gelu({SCATTERED})"),
        ),
        "activation after the sum",
    ),
    "LayerNorm": (
        half(
            ("rms_norm", "layer_norm"),
            ("copy(weight, group), 1e-5", "copy(weight, group), None, 1e-5"),
        ),
        "a different norm",
    ),
    "an epsilon of 1e-6": (half(("1e-5", "1e-6")), "wrong epsilon"),
    "the norm as the residual": (half(("return x + ", "return normed + ")), "residual normed"),
    "a detached residual": (
        half(("return x + ", "return x.detach() + ")),
        "no way back by the residual",
    ),
    "gathered in single precision": (
        half(
            ("gather(normed,", "gather(normed.float(),"),
            ('after="sharded")', 'after="sharded").double()'),
        ),
        "rounded on the way",
    ),
    "a hook on the weight": (
        half(
            ("copy(weight, group)", "weight"),
            ("    normed =", "    weight.register_hook(lambda g: reduce(g, group))\n    normed ="),
        ),
        "wrong second step",
    ),
    "the list of sizes emptied": (
        half(
            ("    return x +", "    y = x +"),
            ("+ copy(bias, group)\n", "+ copy(bias, group)\n    sizes.clear()\n    return y\n"),
        ),
        "input changed",
    ),
    "saved in the class": (
        changed(
            BY_HAND,
            (
                "        ctx.save_for_backward(x, weight, up, down, every, wide)\n",
                "        Half.saved = x, weight, up, down, every, wide\n",
            ),
            ("= ctx.saved_tensors", "= Half.saved"),
        ),
        "wrong second step",
    ),
    "a mean of the bias's gradient": (
        half(
            (
                "copy(bias, group)",
                "copy(bias, group) / group.size() + bias.detach() * (1 - 1 / group.size())",
            )
        ),
        "divided by n",
    ),
    "without tokens, without a call": (half(EMPTY), "left out by an empty rank"),
}

RIGHT = {
    "sequence_mlp": {
        "by conjugates": HALF,
        "gathered again": AGAIN,
        "by hand": BY_HAND,
        "the bias shared out": SHARED_OUT,
    }
}
WRONG = {"sequence_mlp": WRONG_HALF}
