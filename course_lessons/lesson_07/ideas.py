"""Wrong ideas about a loss from sharded logits, with their values on every rank.

They apply to all functions of lesson 07: missing or wrong communication, or a missed target. Ideas
that concern only ignored, padded or smoothed labels are in `losses.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from course_classroom.judge.looking import Idea, ideas
from course_classroom.judge.words import Page
from course_lessons.lesson_07.trial import PLAIN, Case

FILLS = (-1e2, -1e3, -1e4, -65504.0)  # including float16's lowest value
EDGES = ((0, 1), (1, 0), (1, 1))  # offsets of the ends of a shard's local indices

SAYS = Page(__file__, "ideas")


class Parts:
    """The values of a case's first step, on each rank and on all ranks together."""

    def __init__(self, case: Case):
        plan = self.plan = case.plan
        self.case, self.n = case, case.n
        self.y, self.kept, self.weight = case.targets[0], case.kept[0], case.weight[0]
        self.all = case.logits(0, case.table)  # (t, rows)
        self.real = self.all[:, : plan.words]
        self.own = [self.all[:, a : min(z, plan.words)] for a, z in case.spans]
        self.widths = [part.shape[-1] for part in self.own]
        self.starts = [a for a, _ in case.spans]
        lowest = torch.full((plan.tokens, 1), -torch.inf, dtype=torch.float64)
        self.m_r = [torch.cat((part, lowest), -1).amax(-1) for part in self.own]
        self.low = [(x - m[:, None]).exp() for x, m in zip(self.own, self.m_r, strict=True)]
        self.m = self.real.amax(-1)
        self.lse_r = [part.logsumexp(-1) for part in self.own]
        self.lse = self.real.logsumexp(-1)
        self.sum_r = [part.sum(-1) for part in self.own]
        self.sum = self.real.sum(-1)
        self.y_r = self.taken(self.starts)
        self.y_all = sum(self.y_r)

    def taken(self, starts: list[int], first: int = 0, more: int = 0, strict: bool = True) -> list:
        """Return each rank's logit of the target, or 0; never 0 unless `strict`."""
        found = []
        for part, width, start in zip(self.own, self.widths, starts, strict=True):
            local = self.y - start
            at = local.clamp(0, max(width - 1, 0))[:, None]
            here = (local >= first) & (local < width + more) if strict else local == local
            logit = part.gather(-1, at)[:, 0] if width else torch.zeros_like(self.m)
            found.append(torch.where(here, logit, 0.0))
        return found

    def loss(self, lse: Tensor, y: Tensor, total: Tensor | None = None) -> Tensor:
        """Return the loss, given each token's log-sum-exp, target logit and sum of logits."""
        e, total = self.plan.smoothing, self.sum if total is None else total
        losses = lse - (1 - e) * y - (e / self.plan.words * total if e else 0.0)
        losses = torch.where(self.kept, losses, 0.0)
        return losses.sum() / self.kept.sum() if self.plan.mean else losses

    def one_hot(self, hit: Callable[[Tensor, int], Tensor] | None = None) -> Tensor:
        """Return (t, rows) with ones in a rank's columns where `hit(local, width)` holds."""
        hit = hit or (lambda local, width: (local >= 0) & (local < width))
        marks = torch.zeros_like(self.all)
        for width, start in zip(self.widths, self.starts, strict=True):
            if width:
                local = self.y - start
                at = start + local.clamp(0, width - 1)[:, None]
                marks.scatter_(-1, at, hit(local, width)[:, None].to(marks.dtype))
        return marks

    def over_entries(self, values: Tensor | float) -> Tensor:
        """values of the real entries → (t, rows) with 0 for padding."""
        wide = torch.zeros_like(self.all)
        wide[:, : self.plan.words] = values
        return wide

    def split(self, whole: Tensor) -> list[Tensor]:
        return [whole[:, a:z] for a, z in self.case.spans]

    def weighed(self, whole: Tensor) -> list[Tensor]:
        return self.split(whole * self.weight[:, None])


def of_the_loss(case: Case) -> Iterator[Idea]:
    """Yield the wrong losses of all ideas, with their values on every rank."""
    p, n, right = Parts(case), case.n, case.steps[0][0]

    def same(lse: Tensor, y: Tensor = p.y_all) -> list[Tensor]:
        return [p.loss(lse, y)] * n

    def cut_off(low: float) -> tuple[Tensor, Tensor]:
        return p.real.clamp(min=low).logsumexp(-1), p.y_all.clamp(min=low)

    below = sum(low.nan_to_num(0.0).sum(-1) for low in p.low).log()
    top, counted = p.real.max(), [rank * width for rank, width in enumerate(p.widths)]
    found = [
        ("nothing shared", [p.loss(*own) for own in zip(p.lse_r, p.y_r, p.sum_r, strict=True)]),
        ("sum not shared", [p.loss(lse, p.y_all) for lse in p.lse_r]),
        ("target not shared", [p.loss(p.lse, y) for y in p.y_r]),
        ("sums below different logits #1", same(below + p.m)),
        ("sums below different logits #2", [p.loss(below + m_r, p.y_all) for m_r in p.m_r]),
        ("largest not put back", same(p.lse - p.m)),
        ("one largest logit for all tokens", same((p.real - top).exp().sum(-1).log() + top)),
        *(("logits cut off", same(*cut_off(low))) for low in FILLS if p.plan.kind != PLAIN),
        ("wrong logarithm", same((p.lse - p.m) / math.log(2) + p.m)),
        ("target counted on every rank #1", same(p.lse, sum(p.taken(p.starts, strict=False)))),
        ("start left out", same(p.lse, sum(p.taken(counted)))),
        *(("the edge of a shard", same(p.lse, sum(p.taken(p.starts, *off)))) for off in EDGES),
        *([("sum for mean", [right * p.kept.sum()] * n)] if p.plan.mean else []),
        ("n times #1", [right * n] * n),
        ("n times too small", [right / n] * n),
        ("sign", [-right] * n),
    ]
    return ideas(SAYS, found, n=n)


def of_the_gradient(case: Case) -> Iterator[Idea]:
    """Yield the wrong gradients of all ideas, for a right loss."""
    p, n, e = Parts(case), case.n, case.plan.smoothing
    soft, hot = p.over_entries(p.real.softmax(-1)), (1 - e) * p.one_hot()
    u = p.over_entries(e / p.plan.words)
    right, dy, t = soft - hot - u, p.weight[:, None], p.plan.tokens
    alone = torch.cat([part.softmax(-1) for part in p.own], -1).nan_to_num(0.0)
    total = (p.lse - p.m).exp()[:, None]
    low = (torch.cat(p.low, -1) / total).nan_to_num(0.0)
    every = (1 - e) * p.one_hot(lambda local, _: local == local)
    odd = [p.one_hot(lambda x, w, a=a, z=z: (x >= a) & (x < w + z)) for a, z in EDGES]
    found = [
        ("no one-hot", p.weighed(soft - u)),
        ("softmax of one rank", p.weighed(p.over_entries(alone) - hot - u)),
        ("softmax below different logits", p.weighed(p.over_entries(low) - hot - u)),
        ("target counted on every rank #2", p.weighed(soft - every - u)),
        *(("the edge of a shard", p.weighed(soft - (1 - e) * marks - u)) for marks in odd),
        ("half of it scaled", p.split((soft - u) * dy - hot)),
        ("half of it scaled", p.split(soft - u - hot * dy)),
    ]
    if p.plan.mean:
        found += [("gradient of the sum", p.split(right * p.kept[:, None]))]
        for entries in ([z - a for a, z in case.spans], [p.plan.words] * n):
            by_entries = [x / w for x, w in zip(p.weighed(right), entries, strict=True)]
            found += [("divided by the entries", [x * p.kept.sum() for x in by_entries])]
            found += [("divided by the entries", by_entries)]
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
