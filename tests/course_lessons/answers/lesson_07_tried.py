"""Answers to lesson 07's exercises: right ones, and likely wrong ones with the name that each is
refused by.

Found by trying; `lesson_07.py` has the likeliest.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from tests.course_lessons.answers import changed

HEAD = "from course_lib.collectives import all_gather, all_reduce\n\n"
SUMS = "total, l_y = all_reduce(torch.stack([e.sum(-1), torch.where(here, some, 0.0)]), group)"
BY_HAND = "both = torch.stack([e.sum(-1), torch.where(here, some, 0.0)])\n    torch.distributed."
CUT = f"""{HEAD}
def cut_loss(logits, targets, start, group):
    t, width = logits.shape
    m = all_reduce(logits.amax(-1), group, "max")
    e = (logits - m[:, None]).exp()
    local = targets - start
    here = (local >= 0) & (local < width)
    some = logits.gather(1, local.clamp(0, width - 1)[:, None])[:, 0]
    {SUMS}
    loss = (total.log() + m - l_y).mean()
    grad = e / total[:, None]
    grad[here, local[here]] -= 1
    return loss, grad / t
"""
LOOP = f"""{HEAD}
def mine(targets, start, width):
    return [(i, int(y) - start) for i, y in enumerate(targets) if start <= int(y) < start + width]

def cut_loss(logits, targets, start, group):
    t, width = logits.shape
    m = all_reduce(logits.max(dim=1).values, group, op="max")
    S = all_reduce(torch.exp(logits - m.unsqueeze(1)).sum(1), group)
    l_y = torch.zeros_like(m)
    for i, j in mine(targets, start, width):
        l_y[i] = logits[i, j]
    l_y = all_reduce(l_y, group)
    grad = torch.exp(logits - (m + S.log()).unsqueeze(1))
    for i, j in mine(targets, start, width):
        grad[i, j] -= 1
    grad.div_(t)
    return float((S.log() + m - l_y).mean()), grad
"""
ONLINE = f"""{HEAD}
def cut_loss(logits, targets, start, group):
    own = torch.logsumexp(logits, -1)
    m = all_reduce(own, group, "max")
    ids = torch.arange(start, start + logits.shape[1], device=logits.device)
    hot = targets[:, None] == ids
    l_y = torch.where(hot, logits, torch.zeros_like(logits)).sum(-1)
    lse = m + all_reduce((own - m).exp(), group).log()
    l_y, n = all_reduce(l_y, group), targets.numel()
    grad = ((logits - lse[:, None]).exp() - hot.to(logits.dtype)) / n
    return [((lse - l_y).sum() / n).item(), grad]
"""
IGNORED = f"""{CUT}
def ignored_loss(logits, targets, start, ignore_index, group):
    keep = targets != ignore_index
    grad = torch.zeros_like(logits)
    if not keep.any():
        return 0, grad
    loss, grad[keep] = cut_loss(logits[keep], targets[keep], start, group)
    return loss, grad
"""
MASKED = '    x = logits.masked_fill(padding, float("-inf"))\n'
PADDED = changed(
    CUT,
    (
        "def cut_loss(logits, targets, start, group)",
        "def padded_loss(logits, targets, start, vocabulary, group)",
    ),
    (
        "    t, width = logits.shape\n",
        "    t, width = logits.shape\n"
        f"    padding = torch.arange(start, start + width) >= vocabulary\n{MASKED}",
    ),
    ("logits.amax(-1)", "x.amax(-1)"),
    ("(logits - m[:, None])", "(x - m[:, None])"),
)
SLICED = f"""{HEAD}
def padded_loss(logits, targets, start, vocabulary, group):
    real = min(max(vocabulary - start, 0), logits.shape[1])
    x, t = logits[:, :real], len(targets)
    m = x.amax(1) if real else torch.full((t,), -float("inf"), dtype=x.dtype)
    m = all_reduce(m, group, "max")
    e = torch.exp(x - m[:, None])
    S = all_reduce(e.sum(1), group)
    hot = (targets[:, None] == start + torch.arange(x.shape[1])).double()
    l_y = all_reduce((x * hot).sum(1), group)
    grad = torch.zeros_like(logits)
    grad[:, :real] = (e / S[:, None] - hot) / t
    return (S.log() + m - l_y).mean(), grad
"""
SMOOTHED = f"""{HEAD}
def smoothed_loss(logits, targets, start, vocabulary, smoothing, group):
    t, width = logits.shape
    m = all_reduce(logits.amax(-1), group, "max")
    e = (logits - m[:, None]).exp()
    local = targets - start
    here = (local >= 0) & (local < width)
    some = logits.gather(1, local.clamp(0, width - 1)[:, None])[:, 0]
    own = torch.stack([e.sum(-1), torch.where(here, some, 0.0), logits.sum(-1)])
    total, l_y, l_all = all_reduce(own, group)
    lse = total.log() + m
    loss = (lse - (1 - smoothing) * l_y - smoothing / vocabulary * l_all).mean()
    grad = e / total[:, None] - smoothing / vocabulary
    grad[here, local[here]] -= 1 - smoothing
    return loss, grad / t
"""
LABELS = f"""{HEAD}
def smoothed_loss(logits, targets, start, vocabulary, smoothing, group):
    hot = (targets[:, None] == start + torch.arange(logits.shape[1])).double()
    q = (1 - smoothing) * hot + smoothing / vocabulary
    own = logits.logsumexp(1)
    m = all_reduce(own, group, "max")
    S, ql = all_reduce(torch.cat([(own - m).exp(), (q * logits).sum(1)]), group).chunk(2)
    lse = m + S.log()
    p = (logits - lse[:, None]).exp()
    return (lse - ql).sum() / len(targets), (p - q) / len(targets)
"""
SHARES = "(1 - smoothing) * hot + smoothing / vocabulary"
OTHERS = (
    "torch.full(logits.shape, smoothing / (vocabulary - 1)).where(hot == 0, "
    "torch.tensor(1 - smoothing + {}))"
)


def cut(*pairs: tuple[str, str]) -> str:
    return changed(CUT, *pairs)


NUMBERS = {
    "at the start, logged": Decimal("11.518"),
    "later, logged": 3.69,
    "eight ranks, too high by": 2.08,
    "padding, too high by": 0.0186,
    "softmax of a rank adds up to": Fraction(1, 2),
    "target, one process": Fraction(-7, 10),
    "target, rank 0": -0.85,
    "target, rank 1": 0.15,
}
RIGHT: dict = {
    "cut_loss": {
        "a loop over the targets": LOOP,
        "log-sum-exps": ONLINE,
        "a helper that is a lambda": [
            "largest = lambda x, g: all_reduce(x.amax(-1), g, 'max')\n" + HEAD,
            cut(('all_reduce(logits.amax(-1), group, "max")', "largest(logits, group)")),
        ],
        "a loss made float32 for a log": cut(("return loss,", "return torch.tensor(loss.item()),")),
        "a loss of one element": cut(("return loss,", "return loss[None],")),
    },
    "ignored_loss": {
        "nothing counts, a plain 0": IGNORED,
        "nothing counts, a fraction": changed(
            IGNORED, ("return 0, grad", 'return __import__("fractions").Fraction(0), grad')
        ),
        "nothing counts, a whole tensor": changed(
            IGNORED, ("return 0, grad", "return torch.tensor(0), grad")
        ),
    },
    "padded_loss": {
        "filled with -inf": PADDED,
        "a slice": SLICED,
        "the lowest float": changed(PADDED, ('float("-inf")', "torch.finfo(logits.dtype).min")),
    },
    "smoothed_loss": {"one message for three": SMOOTHED, "labels as a tensor": LABELS},
    "log_two": {"numbers of several kinds": NUMBERS},
}
WRONG: dict = {
    "cut_loss": {
        "the first number of tokens is kept": (
            "FIRST = []\n"
            + cut(("return loss, grad / t", "FIRST.append(t)\n    return loss, grad / FIRST[0]")),
            "wrong gradient",
        ),
        "where a shard starts is kept": (
            "FIRST = {}\n"
            + cut(("targets - start", "targets - FIRST.setdefault(group.size(), start)")),
            "wrong loss",
        ),
        "the largest logit of all tokens": (
            cut(("logits.amax(-1)", "logits.max().repeat(t)")),
            "one largest logit for all tokens",
        ),
        "0 times -inf": (
            cut(("torch.where(here, some, 0.0)", "some * here")),
            "zero times infinity",
        ),
        "cut off at -1e4": (
            cut(("    m = all", "    logits = logits.clamp(min=-1e4)\n    m = all")),
            "logits cut off",
        ),
        "one buffer for every gradient": (
            cut(
                ("def cut", "KEPT = {}\n\ndef cut"),
                (
                    "return loss, grad / t",
                    "out = KEPT.setdefault(tuple(grad.shape), torch.empty_like(grad))\n"
                    "    return loss, torch.div(grad, t, out=out)",
                ),
            ),
            "one buffer for two results",
        ),
        "start from the rank": (
            cut(("targets - start", "targets - group.rank() * width")),
            "start left out",
        ),
        "divided by the width": (cut(("grad / t", "grad / width")), "divided by the entries"),
        "divided by all elements": (
            cut(("grad / t", "grad / grad.numel()")),
            "divided by the entries",
        ),
        "base 2": (cut(("total.log()", "total.log2()")), "wrong logarithm"),
        "a reduce to rank 0": (
            cut((SUMS, BY_HAND + "reduce(both, group_dst=0, group=group)\n    total, l_y = both")),
            "on one rank only",
        ),
        "not waited for": (
            cut(
                (
                    SUMS,
                    BY_HAND + "all_reduce(both, group=group, async_op=True)\n    total, l_y = both",
                )
            ),
            "not waited for",
        ),
        "rounded messages": (
            cut(("0.0)]), group)", "0.0)]).float(), group).double()")),
            "rounded on the way",
        ),
        "a sparse gradient": (cut(("grad / t\n", "(grad / t).to_sparse()\n")), "wrong shape"),
        "a complex loss": (cut(("return loss,", "return complex(loss),")), "no single loss"),
    },
    "ignored_loss": {
        "zeros by a product": (
            changed(IGNORED, ("return 0, grad\n", "return 0, logits * 0\n")),
            "zero times infinity",
        ),
        "the largest logit of all tokens": (
            changed(IGNORED, ("logits.amax(-1)", "logits.max().repeat(t)")),
            "one largest logit for all tokens",
        ),
        "a rank without a target returns": (
            changed(
                IGNORED,
                (
                    "    if not keep.any():",
                    "    here = (targets >= start) & (targets < start + logits.size(1))\n"
                    "    if not (here & keep).any():",
                ),
            ),
            "raised",
        ),
        "no gradient at all": (
            changed(IGNORED, ("return 0, grad", "return 0, None")),
            "wrong shape",
        ),
        "counted on each rank": (
            changed(
                IGNORED,
                (
                    "    return loss, grad\n",
                    "    mine = keep & (targets >= start)\n"
                    "    mine = mine & (targets < start + logits.shape[1])\n"
                    "    return loss * keep.sum() / mine.sum(), grad\n",
                ),
            ),
            "counted on one rank",
        ),
    },
    "padded_loss": {
        "the first vocabulary is kept": (
            "FIRST = []\n"
            + changed(PADDED, (">= vocabulary", ">= (FIRST.append(vocabulary) or FIRST[0])")),
            "wrong loss",
        ),
        "padding in the maximum": (
            changed(PADDED, ("x.amax(-1)", "logits.amax(-1)")),
            "padding in the largest logit",
        ),
        "filled with -1e4": (changed(PADDED, ('float("-inf")', "-1e4")), "padding not low enough"),
        "a mask that multiplies": (
            changed(PADDED, ("(x - m[:, None]).exp()", "(logits - m[:, None]).exp() * ~padding")),
            "zero times infinity",
        ),
        "a negative slice": (
            changed(
                SLICED,
                (
                    "min(max(vocabulary - start, 0), logits.shape[1])",
                    "min(vocabulary - start, logits.shape[1])",
                ),
            ),
            "a slice from the end",
        ),
        "one entry too many": (
            changed(PADDED, (">= vocabulary", "> vocabulary")),
            "the border of the padding",
        ),
        "one entry too few": (
            changed(PADDED, (">= vocabulary", ">= vocabulary - 1")),
            "the border of the padding",
        ),
        "the last rank's padding": (
            changed(
                PADDED,
                (
                    "start + width) >= vocabulary",
                    "start + width) >= (vocabulary if group.rank() == group.size() - 1 else 10**6)",
                ),
            ),
            "only the last rank's padding",
        ),
        "0 as the largest of nothing": (
            changed(
                SLICED,
                ('torch.full((t,), -float("inf"), dtype=x.dtype)', "torch.zeros(t, dtype=x.dtype)"),
            ),
            "padding in the largest logit",
        ),
        "the largest logit of all tokens": (
            changed(PADDED, ("x.amax(-1)", "x.max().repeat(t)")),
            "one largest logit for all tokens",
        ),
        "a rank of padding returns": (
            changed(
                SLICED,
                (
                    "    x, t =",
                    "    if not real:\n        return 0.0, torch.zeros_like(logits)\n    x, t =",
                ),
            ),
            "left out by an empty rank",
        ),
    },
    "smoothed_loss": {
        "over v - 1": (
            SMOOTHED.replace("smoothing / vocabulary", "smoothing / (vocabulary - 1)"),
            "ε over v − 1",
        ),
        "no share for the target": (
            changed(LABELS, ("+ smoothing / vocabulary", "+ smoothing / vocabulary * (1 - hot)")),
            "no share for the target",
        ),
        "turned round": (
            changed(
                LABELS,
                ("(1 - smoothing) * hot + smoothing /", "smoothing * hot + (1 - smoothing) /"),
            ),
            "shares swapped",
        ),
        "the target's logit in full": (
            SMOOTHED.replace("(1 - smoothing) * l_y", "l_y").replace("-= 1 - smoothing", "-= 1"),
            "target in full",
        ),
        "a vocabulary of n widths": (
            SMOOTHED.replace("smoothing / vocabulary", "smoothing / (width * group.size())"),
            "share of one rank's entries",
        ),
        "softmax made smaller": (
            changed(SMOOTHED, ("grad = e /", "grad = (1 - smoothing) * e /")),
            "softmax made smaller",
        ),
        "the largest logit of all tokens": (
            changed(SMOOTHED, ("logits.amax(-1)", "logits.max().repeat(t)")),
            "one largest logit for all tokens",
        ),
        "the others' shares, a label in float32": (
            changed(LABELS, (SHARES, OTHERS.format("0.0"))),
            "other entries only",
        ),
        "over v - 1, a share in float32": (
            changed(
                SMOOTHED,
                (
                    "smoothing / vocabulary * l_all",
                    "torch.tensor(smoothing / (vocabulary - 1)) * l_all",
                ),
            ),
            "ε over v − 1",
        ),
        "over v - 1 and more for the target, a label in float32": (
            changed(LABELS, (SHARES, OTHERS.format("smoothing / (vocabulary - 1)"))),
            "ε over v − 1",
        ),
        "a right label, in float32": (
            changed(LABELS, (SHARES, f"({SHARES}).float().double()")),
            "rounded on the way",
        ),
    },
}
