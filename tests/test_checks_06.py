"""The checks of lesson 06 on real ranks: right answers pass, plausible wrong ones go by their name.

Half a block with its tokens cut, and the gradients that owe a sum. `test_checks_06_uneven.py` has
the mean over uneven pieces, `test_checks_06_numbers.py` the question with numbers.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.likeliest import likeliest

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "06_sequence"

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


def changed(text: str, *changes: tuple[str, str]) -> str:
    """A right answer with a mistake in it."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def half(*changes: tuple[str, str]) -> str:
    return changed(HALF, *changes)


SCATTERED = "reduce_scatter(owed, group, 1, sizes)"
WRONG_HALF = {
    "bias before the sum": (
        half(
            (" + copy(bias, group)\n", "\n"),
            ("@ down.t()\n", "@ down.t() + copy(bias, group)\n"),
        ),
        "bias n times",
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
    "nobody asked": (
        half(
            ('gather(normed, group, 1, sizes, after="sharded")', "normed"), (SCATTERED, "owed")
        ),
        "own columns alone",
    ),
    "cut without a sum": (
        half((SCATTERED, "split(owed, group, 1, sizes)")),
        "own columns alone",
    ),
    "no norm": (
        half(("F.rms_norm(x, x.shape[-1:], copy(weight, group), 1e-5)", "x")),
        "norm left out",
    ),
    "norm without its weight": (
        half(("copy(weight, group), 1e-5", "None, 1e-5")),
        "weight left out",
    ),
    "another bend": (half(("F.gelu(", "F.relu(")), "wrong output"),
    "weight not summed": (half(("copy(weight, group)", "weight")), "a copy's debt"),
    "bias not summed": (half(("copy(bias, group)", "bias")), "a copy's debt"),
    "neither summed": (
        half(("copy(weight, group)", "weight"), ("copy(bias, group)", "bias")),
        "a copy's debt",
    ),
    "gathered as if all did the same": (
        half(("sharded", "replicated")),
        "the other backward of a gather",
    ),
    "summed twice": (
        half(("copy(weight, group), 1", "copy(copy(weight, group), group), 1")),
        "n times",
    ),
    "sent without a graph": (
        half(
            ("import copy, gather, reduce, reduce_scatter, split", "import copy"),
            ("import torch.nn", "from course_lib.collectives import all_gather, reduce_scatter\n"
             "import torch.nn"),
            ('gather(normed, group, 1, sizes, after="sharded")',
             "all_gather(normed.detach(), group, 1, sizes)"),
            ("scatter(owed, ", "scatter(owed.detach(), "),
        ),
        "no way back",
    ),
    "all-reduce, then cut": (
        half((SCATTERED, "split(reduce(owed, group), group, 1, sizes)")),
        "all-reduce, then cut",
    ),
    "gathered for each": (
        half(
            ("    owed = F", '    more = gather(normed, group, 1, sizes, after="sharded")\n'
             "    owed = F"),
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
    "three sums": (
        half(("return x + ", "return copy(bias * 0, group) + x + ")),
        "more bytes",
    ),
    "norm behind the gather": (
        half(
            ("    normed = F.rms_norm(x, x.shape[-1:], copy(weight, group), 1e-5)\n", ""),
            ("gather(normed, group", "gather(x, group"),
            ("    owed", "    every = F.rms_norm(every, x.shape[-1:], copy(weight, group), 1e-5)\n"
             "    owed"),
        ),
        "all tokens kept",
    ),
    "a copy kept on the side": (
        half(("    return x", "    kept.append(every.detach().clone())\n    return x"),
             ("def sequence", "kept = []\n\n\ndef sequence")),
        "all tokens kept",
    ),
    "all tokens returned": (
        half(
            ("    return x", "    y = x"),
            ("+ copy(bias, group)\n", '+ copy(bias, group)\n    return gather(y, group, 1, sizes, '
             'after="replicated")\n'),
        ),
        "all tokens",
    ),
    "in place": (
        half(("    normed = ", "    x.data += 1\n    x = x - 1\n    normed = ")),
        "input changed",
    ),
    "the notebook's rank": (
        half(
            ("    return x + ", "    whole = reduce(owed, group)\n    first = sum(sizes[:rank])\n"
             "    return x + "),
            (SCATTERED, "whole[:, first : first + sizes[min(rank, len(sizes) - 1)]]"),
        ),
        "not of the group",
    ),
    "nothing returned": (half(("    return x", "    x")), "nothing returned"),
    "the first step remembered": (
        half(
            ("def sequence", "first = {}\n\n\ndef sequence"),
            ("    normed = ", "    up = first.setdefault(group, up)\n    normed = "),
        ),
        "another second step",
    ),
}  # fmt: skip

PAY = '''
from course_lib.collectives import all_reduce

OWED = ["positions", "norm.weight", "norm.bias", "q_norm.weight", "out.bias"]


def pay_sums(gradients, group):
    """Joined into one message."""
    joined = torch.cat([gradients[name].flatten() for name in OWED])
    summed = all_reduce(joined, group)
    parts = summed.split([gradients[name].numel() for name in OWED])
    paid = {name: part.view_as(gradients[name]) for name, part in zip(OWED, parts)}
    return {**gradients, **paid}
'''
# In place, with torch's own call, by what is not owed.
IN_PLACE = """
def pay_sums(gradients, group):
    cut = ("qkv.weight", "qkv.bias", "out.weight")
    some = [g for k, g in sorted(gradients.items()) if k not in cut and "readout" not in k]
    flat = torch.nn.utils.parameters_to_vector(some)
    dist.all_reduce(flat, group=group)
    torch.nn.utils.vector_to_parameters(flat, some)
    return gradients
"""
# Without an all-reduce there are more messages; with one per dtype there would be one.
BY_SUM_OF_STACK = """
def pay_sums(gradients, group):
    names = ["out.bias", "norm.weight", "norm.bias", "q_norm.weight", "positions"]
    sizes = [gradients[name].numel() for name in names]
    flat = torch.empty(sum(sizes), dtype=torch.float64)
    at = 0
    for name, size in zip(names, sizes):
        flat[at : at + size] = gradients[name].reshape(-1)
        at += size
    work = dist.all_reduce(flat, group=group, async_op=True)
    out = dict(gradients)
    work.wait()
    for name, part in zip(names, flat.split(sizes)):
        out[name] = part.reshape(gradients[name].shape).clone()
    return out
"""


def pay(*changes: tuple[str, str]) -> str:
    return changed(PAY, *changes)


EACH = """
from course_lib.collectives import all_reduce


def pay_sums(gradients, group):
    owed = ["positions", "norm.weight", "norm.bias", "q_norm.weight", "out.bias"]
    return {k: all_reduce(g, group) if k in owed else g for k, g in gradients.items()}
"""
WRONG_PAY = {
    "as they were": (
        "def pay_sums(gradients, group):\n    return dict(gradients)\n",
        "nothing summed",
    ),
    "norms alone": (pay(('"positions", ', ""), (', "out.bias"', "")), "a debt left"),
    "not inside the heads": (pay(('"q_norm.weight", ', "")), "a debt left"),
    "not the positions": (pay(('"positions", ', "")), "a debt left"),
    "not the row bias": (pay((', "out.bias"', "")), "a debt left"),
    "not the norm's bias": (pay(('"norm.bias", ', "")), "a debt left"),
    "readout summed": (
        pay(('"out.bias"', '"out.bias", "readout.weight", "readout.bias"')),
        "summed what was whole",
    ),
    "a bias of the readout": (
        pay(('"out.bias"', '"out.bias", "readout.bias"')),
        "summed what was whole",
    ),
    "a cut bias scaled": (
        pay(("{**gradients, ", '{**gradients, "qkv.bias": gradients["qkv.bias"] * 2, ')),
        "summed what is cut",
    ),
    "a mean": (
        pay(("all_reduce(joined, group)", "all_reduce(joined, group) / group.size()")),
        "mean",
    ),
    "the largest": (
        pay(("= all_reduce(joined, group)", "= joined.clone()\n"
             "    dist.all_reduce(summed, op=dist.ReduceOp.MAX, group=group)")),
        "wrong gradient",
    ),
    "one by one": (EACH, "a message for each"),
    "gathered and added": (
        pay(("import all_reduce", "import all_gather"),
            ("all_reduce(joined, group)", "all_gather(joined[None], group).sum(0)")),
        "another message",
    ),
    "zeros along": (
        pay(("for name in OWED])\n    summed", "for name in OWED] + "
             "[torch.zeros(50, dtype=torch.float64)])\n    summed"),
            ("    parts = summed", "    parts = summed[:-50]")),
        "more than is owed",
    ),
    "some of them": (pay(("return {**gradients, **paid}", "return paid")), "a gradient missing"),
    "a list": (
        pay(("return {**gradients, **paid}", "return list(gradients.values())")),
        "not a dictionary",
    ),
    "flat": (pay(("part.view_as(gradients[name])", "part")), "wrong shape"),
    "nothing": (pay(("    return {", "    {")), "nothing returned"),
    "the first step again": (
        pay(("OWED = [", "first = {}\nOWED = ["),
            ("{**gradients, **paid}", "first.setdefault(group, {**gradients, **paid})")),
        "another later step",
    ),
}  # fmt: skip

RIGHT = {"sequence_mlp": (HALF, AGAIN, BY_HAND), "pay_sums": (PAY, IN_PLACE, BY_SUM_OF_STACK)}


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, {name: source, "Half": source})


def reference(name: str) -> str:
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    source = next(c.source for c in cells if f"def {name}" in c.source)
    return source.split("\n", 1)[1]  # without the magic's line


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_are_right_whatever_their_style(desk, name):
    for source in RIGHT[name]:
        verdict = judged(desk, name, source)
        assert verdict.outcome == "right", str(verdict)
        assert verdict.points == frame.find(name).points


@pytest.mark.slow  # its notebook, which each run executes, says the same
@pytest.mark.parametrize("name", RIGHT)
def test_the_reference_is_right(desk, name):
    assert judged(desk, name, reference(name)).outcome == "right"


@pytest.mark.parametrize(
    "mistake",
    likeliest(
        WRONG_HALF,
        first=(
            "bias before the sum",
            "weight not summed",
            "gathered as if all did the same",
            "all tokens returned",
        ),
    ),
)
def test_a_wrong_half_block_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_HALF[mistake]
    verdict = judged(desk, "sequence_mlp", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize(
    "mistake",
    likeliest(WRONG_PAY, first=("as they were", "norms alone", "readout summed", "one by one")),
)
def test_a_wrong_payment_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_PAY[mistake]
    verdict = judged(desk, "pay_sums", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize("name", RIGHT)
def test_what_breaks_costs_one_check(desk, name):
    inputs = {"sequence_mlp": "a, b, c, d, e, f, g", "pay_sums": "a, b"}[name]
    strange = {"sequence_mlp": "wrong shape", "pay_sums": "not a dictionary"}[name]
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("return 'tokens'", strange),
        ("import os\n    os._exit(3)", "killed"),
    ):
        verdict = judged(desk, name, f"def {name}({inputs}):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert judged(desk, name, RIGHT[name][0]).outcome == "right"


@pytest.mark.parametrize("name", RIGHT)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(desk, name):
    wrong = {"sequence_mlp": WRONG_HALF, "pay_sums": WRONG_PAY}[name]
    some = [source for source, _ in list(wrong.values())[:3]]
    said = " ".join([*frame.find(name).hints, frame.find(name).when_right])
    said += " ".join(judged(desk, name, source).text for source in some)
    for piece in ('after="sharded"', "copy(weight", "copy(bias", "reduce_scatter(", '"q_norm'):
        assert piece not in said
