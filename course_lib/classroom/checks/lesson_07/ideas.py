"""Wrong ideas about a loss from cut logits, and what each of them gives on every rank.

They hold for all functions of lesson 07: what is not shared, shared wrongly, or not found. What
belongs to ignored, padded and smoothed labels alone stands with those exercises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from course_lib.classroom.checks.lesson_07.case import PLAIN, Case
from course_lib.classroom.checks.looking import Idea

FILLS = (-1e2, -1e3, -1e4, -65504.0)  # float16's lowest among them


class Parts:
    """What each rank knows of a case's first step, and what all know together."""

    def __init__(self, case: Case):
        plan = self.plan = case.plan
        self.case, self.n = case, case.n
        self.y, self.kept, self.weight = case.targets[0], case.kept(0), case.weight(0)
        self.all = case.logits(0, case.table)  # (t, rows)
        self.real = self.all[:, : plan.words]
        self.own = [self.all[:, a : min(z, plan.words)] for a, z in case.spans]
        self.starts = [a for a, _ in case.spans]
        lowest = torch.full((plan.tokens, 1), -torch.inf, dtype=torch.float64)
        self.m_r = [torch.cat((part, lowest), -1).amax(-1) for part in self.own]
        self.m = self.real.amax(-1)
        self.lse_r = [part.logsumexp(-1) for part in self.own]
        self.lse = self.real.logsumexp(-1)
        self.y_r = [self.taken(part, a, strict=True) for part, a in self.each()]
        self.y_all = torch.stack(self.y_r).sum(0)
        self.sum_r = [part.sum(-1) for part in self.own]
        self.sum = self.real.sum(-1)

    def each(self) -> Iterator[tuple[Tensor, int]]:
        return zip(self.own, self.starts, strict=True)

    def taken(self, part: Tensor, start: int, strict: bool, first: int = 0, more: int = 0):
        """The target's logit of this part; `strict` looks whether it is here at all."""
        width = part.shape[-1]
        if not width:
            return torch.zeros(len(self.y), dtype=torch.float64)
        local = self.y - start
        found = part.gather(-1, local.clamp(0, width - 1)[:, None])[:, 0]
        here = (local >= first) & (local < width + more)
        return torch.where(here, found, 0.0) if strict else found

    def loss(self, lse: Tensor, y: Tensor, total: Tensor | None = None) -> Tensor:
        """One loss of each token's log-sum-exp, target's logit and sum of logits."""
        e, total = self.plan.smoothing, self.sum if total is None else total
        losses = lse - (1 - e) * y - (e / self.plan.words * total if e else 0.0)
        return self.reduced(torch.where(self.kept, losses, 0.0))

    def reduced(self, losses: Tensor) -> Tensor:
        return losses.sum() / self.kept.sum() if self.plan.mean else losses

    def one_hot(self, hit: Callable[[Tensor, int], Tensor]) -> Tensor:
        """(t, rows) of ones where `hit(local, width)` says so, in each rank's own columns."""
        marks = torch.zeros_like(self.all)
        for part, start in self.each():
            width = part.shape[-1]
            if not width:
                continue
            local = self.y - start
            here = hit(local, width)
            at = start + local.clamp(0, width - 1)[:, None]
            marks.scatter_(-1, at, here[:, None].to(marks.dtype))
        return marks

    def softmax(self) -> Tensor:
        """(t, rows) over the real words."""
        p = torch.zeros_like(self.all)
        p[:, : self.plan.words] = self.real.softmax(-1)
        return p

    def uniform(self) -> Tensor:
        """(t, rows): what smoothing takes from each real word."""
        u = torch.zeros_like(self.all)
        u[:, : self.plan.words] = self.plan.smoothing / self.plan.words
        return u

    def split(self, whole: Tensor) -> list[Tensor]:
        return [whole[:, a:z] for a, z in self.case.spans]

    def weighed(self, whole: Tensor) -> list[Tensor]:
        return self.split(whole * self.weight[:, None])


def here(local: Tensor, width: int) -> Tensor:
    return (local >= 0) & (local < width)


def of_the_loss(case: Case) -> Iterator[Idea]:
    """Wrong losses."""
    p, n = Parts(case), case.n
    right = case.steps[0][0]

    def same(loss: Tensor) -> list[Tensor]:
        return [loss] * n

    yield Idea(
        "nothing shared",
        "Each rank has the loss of its own entries alone, as if there were no others.",
        [p.loss(*three) for three in zip(p.lse_r, p.y_r, p.sum_r, strict=True)],
    )
    yield Idea(
        "sum not shared",
        "Each rank divides by its own sum of exponentials. The softmax is over all entries, so the "
        "sum is one over all ranks.",
        [p.loss(lse, p.y_all) for lse in p.lse_r],
    )
    yield Idea(
        "target not shared",
        "Only the rank that has the target's logit has taken it off. The others take off nothing, "
        "and so the ranks have different losses.",
        [p.loss(p.lse, y) for y in p.y_r],
    )
    below = [
        torch.where(m_r == -torch.inf, 0.0, (part - m_r[:, None]).exp().sum(-1))
        for part, m_r in zip(p.own, p.m_r, strict=True)
    ]
    yield Idea(
        "sums below different logits",
        "The ranks' sums of exponentials were added up, each relative to another largest logit. "
        "They can be added once all are relative to the same one.",
        same(p.loss(torch.stack(below).sum(0).log() + p.m, p.y_all)),
    )
    yield Idea(
        "sums below different logits",
        "Each rank's sum is relative to its own largest logit, and so is the loss that it makes of "
        "the total: the ranks have subtracted different numbers.",
        [p.loss(torch.stack(below).sum(0).log() + m_r, p.y_all) for m_r in p.m_r],
    )
    yield Idea(
        "largest not put back",
        "The exponentials were summed relative to the largest logit, and the target's logit was "
        "taken as it is. What is subtracted in one place is missing in the other.",
        same(p.loss(p.lse - p.m, p.y_all)),
    )
    everyone = p.real.max()
    yield Idea(
        "one largest logit for all tokens",
        "Some token's sum of exponentials is 0: what was subtracted lies far above all logits of "
        "that token. Every token has a largest logit of its own; that of all tokens together, or "
        "of absolute values, will not do.",
        same(p.loss((p.real - everyone).exp().sum(-1).log() + everyone, p.y_all)),
    )
    for low in FILLS if p.plan.kind != PLAIN else ():
        yield Idea(
            "logits cut off",
            f"Logits below {low:,.0f} were made {low:,.0f}. They may be anything, also all of "
            "them; only -inf as a largest logit needs care.",
            same(p.loss(p.real.clamp(min=low).logsumexp(-1), p.y_all.clamp(min=low))),
        )
    yield Idea(
        "another logarithm",
        "The logarithm is to the base 2. The loss has the natural one.",
        same(p.loss((p.lse - p.m) / math.log(2) + p.m, p.y_all)),
    )
    loose = torch.stack([p.taken(part, a, strict=False) for part, a in p.each()]).sum(0)
    yield Idea(
        "a word on every rank",
        "Every rank contributes a logit for every target, and all but one of them that of some "
        "other entry. A rank that does not have the target contributes 0.",
        same(p.loss(p.lse, loose)),
    )
    counted = [rank * part.shape[-1] for rank, part in enumerate(p.own)]
    odd = [p.taken(part, a, strict=True) for part, a in zip(p.own, counted, strict=True)]
    yield Idea(
        "start left out",
        "Each rank took its entries to begin at rank · (the number of its own). Shards have "
        "different lengths: where they begin is `start`.",
        same(p.loss(p.lse, torch.stack(odd).sum(0))),
    )
    for first, more in ((0, 1), (1, 0), (1, 1)):
        odd = [p.taken(part, a, strict=True, first=first, more=more) for part, a in p.each()]
        yield Idea(
            "the edge of a shard",
            "Wrong are only the targets at the edge of a shard, the first entry of a rank or the "
            "one after its last: they are found twice, or by no rank. Of width entries the local "
            "indices are 0 to width - 1.",
            same(p.loss(p.lse, torch.stack(odd).sum(0))),
        )
    if p.plan.mean:
        yield Idea(
            "sum for mean",
            "That is the sum over the tokens; wanted is their mean.",
            same(right * p.kept.sum()),
        )
    yield Idea(
        "n times",
        f"It is {n} times too large: something that all ranks had already was summed over them.",
        same(right * n),
    )
    yield Idea("n times too small", f"It is {n} times too small: a mean over ranks, for the sum.",
               same(right / n))  # fmt: skip
    yield Idea("sign", "Its sign is turned: the loss is -log of a probability.", same(-right))


def of_the_gradient(case: Case) -> Iterator[Idea]:
    """Wrong gradients beside a right loss."""
    p, n, e = Parts(case), case.n, case.plan.smoothing
    soft, hot = p.softmax(), (1 - e) * p.one_hot(here)
    u = p.uniform()
    right = soft - hot - u
    yield Idea(
        "no one-hot",
        "That is the softmax alone. At the target's own logit a 1 is missing.",
        p.weighed(soft - u),
    )
    alone = torch.zeros_like(soft)
    for part, start in p.each():
        alone[:, start : start + part.shape[-1]] = part.softmax(-1).nan_to_num(0.0)
    yield Idea(
        "softmax of one rank",
        "On each rank the softmax adds up to 1. It does so over all ranks: the sum to divide by "
        "is the shared one.",
        p.weighed(alone - hot - u),
    )
    below = torch.zeros_like(soft)
    total = (p.lse - p.m).exp()
    for part, start, m_r in zip(p.own, p.starts, p.m_r, strict=True):
        low = (part - m_r[:, None]).exp() / total[:, None]
        below[:, start : start + part.shape[-1]] = low.nan_to_num(0.0)
    yield Idea(
        "softmax below different logits",
        "The exponentials of the gradient are relative to the rank's own largest logit, the sum "
        "that they are divided by relative to that of all ranks.",
        p.weighed(below - hot - u),
    )
    yield Idea(
        "a word on every rank",
        "Every rank takes 1 off one of its logits for each token; only the rank with the target "
        "should.",
        p.weighed(soft - (1 - e) * p.one_hot(lambda local, _: local == local) - u),
    )
    for low, high in ((0, 1), (1, 0), (1, 1)):
        odd = p.one_hot(lambda x, w, low=low, high=high: (x >= low) & (x < w + high))
        yield Idea(
            "the edge of a shard",
            "Wrong are only the tokens whose target is at the edge of a shard: the first entry of "
            "a rank, or the one after its last.",
            p.weighed(soft - (1 - e) * odd - u),
        )
    if p.plan.mean:
        yield Idea(
            "gradient of the sum",
            "That is the gradient of the sum over the tokens. The loss is their mean, so each "
            "token's share is smaller.",
            p.split(right * p.kept[:, None]),
        )
        widths = [part.shape[-1] for part in p.split(right)]
        for entries in (widths, [p.plan.words] * n):
            for factor in (p.kept.sum(), 1):
                parts = zip(p.weighed(right), entries, strict=True)
                yield Idea(
                    "divided by the entries",
                    "It was divided by a number of entries. The mean is over the tokens.",
                    [part * factor / w for part, w in parts],
                )
    else:
        for what, dy in (
            ("mean", p.weight.mean()), ("sum", p.weight.sum()), ("first", p.weight[0])
        ):  # fmt: skip
            yield Idea(
                "one gradient for all tokens",
                f"The {what} of the gradients that arrive was multiplied in for every token. Each "
                "token's loss has one of its own: `grad` is (t,).",
                p.split(right * dy),
            )
        for dy in (1.0, p.weight[:, None]):
            yield Idea(
                "gradient of the mean",
                "It is divided by the number of tokens, as if a mean had been returned. Each token "
                "has a loss of its own; what a mean divides by is in the gradient that arrives.",
                p.split(right * dy / p.plan.tokens),
            )
        yield Idea(
            "incoming gradient left out",
            "That is the gradient of the sum of all losses. The gradient that arrives is another "
            "number for each token, and has to be multiplied in.",
            p.split(right),
        )
    for name, factor in (("n times", n), ("n times too small", 1 / n)):
        size = "large" if factor > 1 else "small"
        yield Idea(
            name,
            f"It is {n} times too {size}. The loss is the same on every rank, and each has the "
            "gradient of its own logits: over the ranks there is nothing to sum and no mean.",
            p.weighed(factor * right),
        )
    yield Idea("sign", "Its sign is turned.", p.weighed(-right))
