"""Wrong ideas about a loss from sharded logits, and what each of them gives on every rank.

They hold for all functions of lesson 07: what is not shared, shared wrongly, or not found. What
belongs to ignored, padded and smoothed labels alone stands with those exercises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from course_lib.classroom.checks.lesson_07.trial import PLAIN, Case
from course_lib.classroom.checks.looking import Idea, ideas
from course_lib.classroom.checks.words import Words

FILLS = (-1e2, -1e3, -1e4, -65504.0)  # float16's lowest among them
EDGES = ((0, 1), (1, 0), (1, 1))  # how far the ends of a shard's local indices are off

SAYS = Words("""
nothing shared: Each rank has the loss of its own entries alone, as if there were no others.
sum not shared: Each rank divides by its own sum of exponentials. The softmax is over all entries,
  so the sum is one over all ranks.
target not shared: Only the rank that has the target's logit has taken it off. The others take off
  nothing, and so the ranks have different losses.
sums below different logits #1: The ranks' sums of exponentials were added up, each relative to
  another largest logit. They can be added once all are relative to the same one.
sums below different logits #2: Each rank's sum is relative to its own largest logit, and so is the
  loss that it makes of the total: the ranks have subtracted different numbers.
largest not put back: The exponentials were summed relative to the largest logit, and the target's
  logit was taken as it is. What is subtracted in one place is missing in the other.
one largest logit for all tokens: Some token's sum of exponentials is 0: what was subtracted lies
  far above all logits of that token. Every token has a largest logit of its own; that of all tokens
  together, or of absolute values, will not do.
logits cut off: Logits below some number, such as -10,000, were set to it. They may be anything,
  also all of them; only -inf as a largest logit needs care.
another logarithm: The logarithm is to the base 2. The loss has the natural one.
a word on every rank #1: Every rank contributes a logit for every target, and all but one of them
  that of some other entry. A rank that does not have the target contributes 0.
a word on every rank #2: Every rank takes 1 off one of its logits for each token; only the rank with
  the target should.
start left out: Each rank took its entries to begin at rank · (the number of its own). Shards have
  different lengths: where they begin is `start`.
the edge of a shard: Wrong are only the targets at the edge of a shard, the first entry of a rank or
  the one after its last: they are found twice, or by no rank. Of width entries the local indices
  are 0 to width - 1.
sum for mean: That is the sum over the tokens; wanted is their mean.
n times #1: It is {n} times too large: something that all ranks had already was summed over them.
n times #2: It is {n} times too large. The loss is the same on every rank, and each has the gradient
  of its own logits: over the ranks there is nothing to sum.
n times too small: It is {n} times too small: a mean over ranks was taken, and there is none to
  take.
sign: Its sign is turned: the loss is -log of a probability, and its gradient softmax minus one-hot.
no one-hot: That is the softmax alone. At the target's own logit a 1 is missing.
softmax of one rank: On each rank the softmax adds up to 1. It does so over all ranks: the sum to
  divide by is the shared one.
softmax below different logits: The exponentials of the gradient are relative to the rank's own
  largest logit, the sum that they are divided by relative to that of all ranks.
half of it scaled: Of softmax minus one-hot only one of the two was multiplied by the token's share,
  or by the gradient that arrives. Both are.
gradient of the sum: That is the gradient of the sum over the tokens. The loss is their mean, so
  each token's share is smaller.
divided by the entries: It was divided by a number of entries. The mean is over the tokens.
one gradient for all tokens: The mean, the sum or the first of the gradients that arrive was
  multiplied in for every token. Each token's loss has one of its own: `grad` is (t,).
gradient of the mean: It is divided by the number of tokens, as if a mean had been returned. Each
  token has a loss of its own; what a mean divides by is in the gradient that arrives.
incoming gradient left out: That is the gradient of the sum of all losses. The gradient that arrives
  is another number for each token, and has to be multiplied in.
""")


class Parts:
    """What each rank knows of a case's first step, and what all know together."""

    def __init__(self, case: Case):
        plan = self.plan = case.plan
        self.case, self.n = case, case.n
        self.y, self.kept, self.weight = case.targets[0], case.kept(0), case.weight(0)
        self.all = case.logits(0, case.table)  # (t, rows)
        self.real = self.all[:, : plan.words]
        self.own = [self.all[:, a : min(z, plan.words)] for a, z in case.spans]
        self.widths = [part.shape[-1] for part in self.own]
        self.starts = [a for a, _ in case.spans]
        lowest = torch.full((plan.tokens, 1), -torch.inf, dtype=torch.float64)
        self.m_r = [torch.cat((part, lowest), -1).amax(-1) for part in self.own]
        self.m = self.real.amax(-1)
        self.lse_r = [part.logsumexp(-1) for part in self.own]
        self.lse = self.real.logsumexp(-1)
        self.sum_r = [part.sum(-1) for part in self.own]
        self.sum = self.real.sum(-1)
        self.y_r = self.taken(self.starts)
        self.y_all = sum(self.y_r)

    def taken(self, starts: list[int], first: int = 0, more: int = 0, strict: bool = True) -> list:
        """Each rank's logit of the target, or 0; any other than `strict` never gives 0."""
        found = []
        for part, width, start in zip(self.own, self.widths, starts, strict=True):
            local = self.y - start
            at = local.clamp(0, max(width - 1, 0))[:, None]
            here = (local >= first) & (local < width + more) if strict else local == local
            logit = part.gather(-1, at)[:, 0] if width else torch.zeros_like(self.m)
            found.append(torch.where(here, logit, 0.0))
        return found

    def loss(self, lse: Tensor, y: Tensor, total: Tensor | None = None) -> Tensor:
        """One loss of each token's log-sum-exp, target's logit and sum of logits."""
        e, total = self.plan.smoothing, self.sum if total is None else total
        losses = lse - (1 - e) * y - (e / self.plan.words * total if e else 0.0)
        losses = torch.where(self.kept, losses, 0.0)
        return losses.sum() / self.kept.sum() if self.plan.mean else losses

    def one_hot(self, hit: Callable[[Tensor, int], Tensor] | None = None) -> Tensor:
        """(t, rows) of ones where `hit(local, width)` says so, in each rank's own columns."""
        hit = hit or (lambda local, width: (local >= 0) & (local < width))
        marks = torch.zeros_like(self.all)
        for width, start in zip(self.widths, self.starts, strict=True):
            if width:
                local = self.y - start
                at = start + local.clamp(0, width - 1)[:, None]
                marks.scatter_(-1, at, hit(local, width)[:, None].to(marks.dtype))
        return marks

    def over_entries(self, values: Tensor | float) -> Tensor:
        """(t, rows): values of the real entries, and 0 for padding."""
        wide = torch.zeros_like(self.all)
        wide[:, : self.plan.words] = values
        return wide

    def split(self, whole: Tensor) -> list[Tensor]:
        return [whole[:, a:z] for a, z in self.case.spans]

    def weighed(self, whole: Tensor) -> list[Tensor]:
        return self.split(whole * self.weight[:, None])


def of_the_loss(case: Case) -> Iterator[Idea]:
    """Wrong losses."""
    p, n, right = Parts(case), case.n, case.steps[0][0]

    def same(lse: Tensor, y: Tensor = p.y_all) -> list[Tensor]:
        return [p.loss(lse, y)] * n

    below = sum(
        torch.where(m_r == -torch.inf, 0.0, (part - m_r[:, None]).exp().sum(-1))
        for part, m_r in zip(p.own, p.m_r, strict=True)
    ).log()
    top = p.real.max()
    counted = [rank * width for rank, width in enumerate(p.widths)]
    found = [
        ("nothing shared", [p.loss(*own) for own in zip(p.lse_r, p.y_r, p.sum_r, strict=True)]),
        ("sum not shared", [p.loss(lse, p.y_all) for lse in p.lse_r]),
        ("target not shared", [p.loss(p.lse, y) for y in p.y_r]),
        ("sums below different logits #1", same(below + p.m)),
        ("sums below different logits #2", [p.loss(below + m_r, p.y_all) for m_r in p.m_r]),
        ("largest not put back", same(p.lse - p.m)),
        ("one largest logit for all tokens", same((p.real - top).exp().sum(-1).log() + top)),
        *(
            ("logits cut off", same(p.real.clamp(min=low).logsumexp(-1), p.y_all.clamp(min=low)))
            for low in (FILLS if p.plan.kind != PLAIN else ())
        ),
        ("another logarithm", same((p.lse - p.m) / math.log(2) + p.m)),
        ("a word on every rank #1", same(p.lse, sum(p.taken(p.starts, strict=False)))),
        ("start left out", same(p.lse, sum(p.taken(counted)))),
        *(("the edge of a shard", same(p.lse, sum(p.taken(p.starts, *off)))) for off in EDGES),
        *([("sum for mean", [right * p.kept.sum()] * n)] if p.plan.mean else []),
        ("n times #1", [right * n] * n),
        ("n times too small", [right / n] * n),
        ("sign", [-right] * n),
    ]
    return ideas(SAYS, found, n=n)


def of_the_gradient(case: Case) -> Iterator[Idea]:
    """Wrong gradients beside a right loss."""
    p, n, e = Parts(case), case.n, case.plan.smoothing
    soft, hot = p.over_entries(p.real.softmax(-1)), (1 - e) * p.one_hot()
    u = p.over_entries(e / p.plan.words)
    right, dy, t = soft - hot - u, p.weight[:, None], p.plan.tokens
    alone = torch.cat([part.softmax(-1) for part in p.own], -1).nan_to_num(0.0)
    total = (p.lse - p.m).exp()[:, None]
    low = [(part - m_r[:, None]).exp() for part, m_r in zip(p.own, p.m_r, strict=True)]
    low = (torch.cat(low, -1) / total).nan_to_num(0.0)
    every = (1 - e) * p.one_hot(lambda local, _: local == local)
    odd = [
        (1 - e) * p.one_hot(lambda x, w, a=a, z=z: (x >= a) & (x < w + z)) for a, z in EDGES
    ]  # fmt: skip
    found = [
        ("no one-hot", p.weighed(soft - u)),
        ("softmax of one rank", p.weighed(p.over_entries(alone) - hot - u)),
        ("softmax below different logits", p.weighed(p.over_entries(low) - hot - u)),
        ("a word on every rank #2", p.weighed(soft - every - u)),
        *(("the edge of a shard", p.weighed(soft - marks - u)) for marks in odd),
        ("half of it scaled", p.split((soft - u) * dy - hot)),
        ("half of it scaled", p.split(soft - u - hot * dy)),
    ]
    if p.plan.mean:
        kept, widths = p.kept.sum(), [z - a for a, z in case.spans]
        found += [("gradient of the sum", p.split(right * p.kept[:, None]))]
        found += [
            (
                "divided by the entries",
                [x * k / w for x, w in zip(p.weighed(right), entries, strict=True)],
            )
            for entries in (widths, [p.plan.words] * n)
            for k in (kept, 1)
        ]
    else:
        arriving = (p.weight.mean(), p.weight.sum(), p.weight[0])
        found += [("one gradient for all tokens", p.split(right * one)) for one in arriving]
        found += [("gradient of the mean", p.split(right * by / t)) for by in (1.0, dy)]
        found += [("incoming gradient left out", p.split(right))]
    found += [
        ("n times #2", p.weighed(right * n)),
        ("n times too small", p.weighed(right / n)),
        ("sign", p.weighed(-right)),
    ]
    return ideas(SAYS, found, n=n)
