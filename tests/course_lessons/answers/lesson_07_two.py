"""Answers to `two_collectives` of lesson 07: right ones, and likely wrong ones with their names."""

from __future__ import annotations

from tests.course_lessons.answers import changed

NAME = "two_collectives"
HEAD = """
from course_lib.collectives import all_gather, all_reduce
from course_lib.tensor_parallel.conjugates import copy, gather, reduce
from course_lib.tensor_parallel.cross_entropy import cross_entropy

"""
BASE = (
    HEAD
    + """
class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, start, group):
        t, width = logits.shape
        m_r = logits.amax(-1)
        base = m_r.clamp(min=-1e300)
        S_r = (logits - base[:, None]).exp().sum(-1)
        local = targets - start
        here = (local >= 0) & (local < width)
        local = local.clamp(0, width - 1)
        y_r = torch.where(here, logits.gather(-1, local[:, None])[:, 0], 0.0)
        m = all_reduce(m_r, group, "max")
        S, y = all_reduce(torch.stack((S_r * (base - m).exp(), y_r)), group)
        ctx.save_for_backward(logits, m, S, here, local)
        return S.log() + m - y

    @staticmethod
    def backward(ctx, grad):
        logits, m, S, here, local = ctx.saved_tensors
        d = (logits - m[:, None]).exp() / S[:, None]
        d[torch.arange(len(d)), local] -= here.double()
        return d * grad[:, None], None, None, None


def two_collectives(logits, targets, start, group):
    return Two.apply(logits, targets, start, group)
"""
)


def two(*pairs: tuple[str, str]) -> str:
    """The right answer with one mistake in it."""
    return changed(BASE, *pairs)


def body(text: str) -> str:
    return f"{HEAD}\ndef {NAME}(logits, targets, start, group):\n{text}"


BY_AUTOGRAD = """    width = logits.shape[-1]
    with torch.no_grad():
        m = all_reduce(logits.amax(-1), group, "max")
    local = targets - start
    here = (local >= 0) & (local < width)
    y_r = torch.where(here, logits.gather(-1, local.clamp(0, width - 1)[:, None])[:, 0], 0.0)
    S_r = (logits - m[:, None]).exp().sum(-1)
    {}
    return S.log() + m - y
"""
ONE_REDUCE = "S, y = reduce(torch.stack((S_r, y_r)), group)"
KEEPS_SOFTMAX = two(
    ("ctx.save_for_backward(logits, m, S, here, local)",
     "ctx.save_for_backward((logits - m[:, None]).exp() / S[:, None], here, local)"),
    ("logits, m, S, here, local = ctx.saved_tensors", "d, here, local = ctx.saved_tensors"),
    ("d = (logits - m[:, None]).exp() / S[:, None]", "d = d.clone()"),
)  # fmt: skip
ALSO_RIGHT = {
    "sums below its own largest": BASE,
    "by autograd, through g": body(BY_AUTOGRAD.format(ONE_REDUCE)),
    "the softmax is kept": KEEPS_SOFTMAX,
}
GATHERED = """    n, width = group.size(), logits.shape[-1]
    widths = torch.zeros(n)
    widths[group.rank()] = width
    sizes = [int(w) for w in all_reduce(widths, group)]
    whole = gather(logits, group, -1, sizes, after="replicated")
    return torch.nn.functional.cross_entropy(whole, targets, reduction="none")
"""
ALL_GATHERED = two(
    ('        m = all_reduce(m_r, group, "max")\n'
     "        S, y = all_reduce(torch.stack((S_r * (base - m).exp(), y_r)), group)\n",
     "        every = all_gather(torch.stack((base, S_r, y_r))[None], group)\n"
     "        m = every[:, 0].amax(0)\n"
     "        S = (every[:, 1] * (every[:, 0] - m).exp()).sum(0)\n"
     "        y = every[:, 2].sum(0)\n"),
)  # fmt: skip
SUMS = "all_reduce(torch.stack((S_r * (base - m).exp(), y_r)), group)"
WRONG_TWO = {
    "three of them": (
        two(("S, y = " + SUMS,
                 "S, y = all_reduce(S_r * (base - m).exp(), group), all_reduce(y_r, group)")),
        "three messages",
    ),
    "three of them, by autograd": (
        body(BY_AUTOGRAD.format("S, y = reduce(S_r, group), reduce(y_r, group)")),
        "three messages",
    ),
    "one all-gather": (ALL_GATHERED, "gathered, then reduced"),
    "all logits": (body(GATHERED), "logits on the way"),
    "a number too many": (
        two(("y_r)), group)", "y_r, y_r)), group)[:2]")),
        "more than three numbers",
    ),
    "not moved": (two(("S_r * (base - m).exp()", "S_r")), "sums below different logits"),
    "moved the wrong way": (two(("(base - m).exp()", "(m - base).exp()")), "wrong loss"),
    "moved for the target too": (
        two(("(base - m).exp(), y_r)", "(base - m).exp(), y_r - base)")),
        "wrong loss",
    ),
    "a rank of -inf": (two(("m_r.clamp(min=-1e300)", "m_r")), "no largest logit"),
    "no largest": (two(("m_r.clamp(min=-1e300)", "0 * m_r"),
                           ('all_reduce(m_r, group, "max")',
                            'all_reduce(m_r, group, "max") * 0')), "overflow"),
    "target counted on every rank": (
        two(("y_r = torch.where(here, logits.gather(-1, local[:, None])[:, 0], 0.0)",
                 "y_r = logits.gather(-1, local[:, None])[:, 0]")),
        "target counted on every rank",
    ),
    "the edge": (two(("(local < width)", "(local <= width)")), "the edge of a shard"),
    "one-hot on every rank": (two(("-= here.double()", "-= 1")), "target counted on every rank"),
    "no one-hot": (
        two(("        d[torch.arange(len(d)), local] -= here.double()\n", "")),
        "no one-hot",
    ),
    "as if all were summed": (
        two(("d * grad[:, None]", "d")),
        "incoming gradient left out",
    ),
    "one incoming gradient for all": (
        two(("d * grad[:, None]", "d * grad[0]")),
        "one gradient for all tokens",
    ),
    "summed over the ranks": (
        two(("d * grad[:, None]", "d * all_reduce(grad, ctx.group)[:, None]"),
                ("ctx.save_for_backward(", "ctx.group = group\n        ctx.save_for_backward(")),
        "n times",
    ),
    "the sum again in the backward": (
        two(("        logits, m, S, here, local = ctx.saved_tensors\n",
                 "        logits, m, S, here, local = ctx.saved_tensors\n"
                 "        S = all_reduce((logits - m[:, None]).exp().sum(-1), ctx.group)\n"),
                ("ctx.save_for_backward(", "ctx.group = group\n        ctx.save_for_backward(")),
        "a message in the backward",
    ),
    "what is kept is changed": (
        KEEPS_SOFTMAX.replace("d = d.clone()", "d = d.data"),
        "second backward",
    ),
    "softmax and exponentials are kept": (
        two(("ctx.save_for_backward(logits, m, S, here, local)",
                 "ctx.more = (logits - m[:, None]).exp(), (logits - m[:, None])\n"
                 "        ctx.save_for_backward(logits, m, S, here, local)")),
        "keeps too much",
    ),
    "by torch's own sum": (
        body(BY_AUTOGRAD.format(
            "S, y = S_r.clone(), y_r.clone()\n    for one in (S, y):\n"
            "        dist.all_reduce(one.data, group=group)")),
        "three messages",
    ),
    "detached": (
        body(BY_AUTOGRAD.format("S, y = all_reduce(torch.stack((S_r, y_r)).detach(), group)")),
        "no gradient",
    ),
    "the mean": (two(("return Two.apply(logits, targets, start, group)",
                          "return Two.apply(logits, targets, start, group).mean()")),
                 "wrong shape"),
    "nothing": (two(("return Two.apply", "Two.apply")), "nothing returned"),
    "in place": (
        two(("        ctx.save_for_backward(",
                 "        logits.data.sub_(m[:, None])\n        m = m * 0\n"
                 "        ctx.save_for_backward("),
                ("return S.log() + m - y", "return S.log() + all_reduce(m_r, group, 'max') - y")),
        "input changed",
    ),
    "float32": (two(("return S.log() + m - y", "return (S.log() + m - y).float()")),
                "wrong shape"),
    "something is kept between calls": (
        "KEPT = {}\n" + two(("        S, y = " + SUMS,
                                 "        S, y = KEPT.setdefault(group.group_name, " + SUMS + ")")),
        "wrong second step",
    ),
}  # fmt: skip
FIRST = ("three of them", "not moved", "target counted on every rank", "all logits")
RIGHT: dict = {NAME: {"recomputed": BASE, **ALSO_RIGHT}}
WRONG: dict = {NAME: {how: WRONG_TWO[how] for how in (*FIRST, *WRONG_TWO)}}
