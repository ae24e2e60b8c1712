"""`smoothed_loss` of lesson 07: labels of which each entry of the vocabulary has a share.

A share has to be one of all entries, not of one rank's; what each wrong share gives stands here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.lesson_07.ideas import Parts, of_the_gradient, of_the_loss
from course_lib.classroom.checks.lesson_07.looks import judged
from course_lib.classroom.checks.lesson_07.trial import APART, FAR, PLAIN, TOKENS, Case, Plan
from course_lib.classroom.checks.looking import THREE, TWO, Idea, ideas
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_07/smoothed_loss")


def plans(seed: int, v: int) -> list[tuple[list[int], Plan]]:
    cases = [(THREE, PLAIN, 0.1), (TWO, PLAIN, 0.4), (THREE, FAR, 0.1), (TWO, APART, 0.1)]
    return [
        (members, Plan(seed, TOKENS, v, v, kind, smoothing=e))
        for members, kind, e in [*cases, (TWO, PLAIN, 0.0)]
    ]


def losses(case: Case) -> Iterator[Idea]:
    if case.plan.smoothing:
        yield from ideas(SAYS, _wrong(Parts(case)))
    yield from of_the_loss(case)


def _wrong(p: Parts) -> Iterator[tuple[str, list[Tensor]]]:
    """Wrong shares of the label and wrong sums of logits, with the loss on each rank."""
    n, e, v = p.n, p.plan.smoothing, p.plan.words
    every, own = ([p.sum] * n, [v] * n), (p.sum_r, p.widths)
    others = ([p.sum - p.y_all] * n, [v - 1] * n)
    means = ([sum(s / w for s, w in zip(p.sum_r, p.widths, strict=True))] * n, [n] * n)
    near_by = [e / w for w in p.widths]
    table = [  # the target's share, and of a sum over so many entries another's
        ("no smoothing", 1, [0.0] * n, every),
        ("sum of logits not shared", 1 - e, [e / v] * n, own),
        ("share of one rank's words #1", 1 - e, near_by, own),
        ("share of one rank's words #1", 1 - e, near_by, every),
        ("share of one rank's words #2", 1 - e, [share / n for share in near_by], every),
        ("share of one rank's words #3", 1 - e, [e] * n, means),
        ("share of one rank's words #3", 1 - e, [e / n] * n, means),
        ("other words only", 1 - e, [e / (v - 1)] * n, others),
        ("over one entry less", 1 - e, [e / (v - 1)] * n, every),
        ("no share for the target", 1 - e, [e / v] * n, others),
        ("the shares turned round", e, [(1 - e) / v] * n, every),
        ("target in full", 1, [e / v] * n, every),
        *(("factor of the sum", 1 - e, [share] * n, every) for share in (e, 1 / v, 1.0)),
        ("sign of the uniform part", 1 - e, [-e / v] * n, every),
    ]
    for entry, target, shares, sums in table:
        for gives in _ways(p, target, shares, *sums):
            yield entry, gives
    short = (1 - e) * (p.lse - p.y_all) - e / v * p.sum
    yield "log-sum-exp of the target alone", [short.mean()] * n
    for sign in (1, -1):
        yield "sum below another number", [p.loss(p.lse + sign * e * p.m, p.y_all)] * n


def _ways(
    p: Parts, target: float, shares: Sequence, sums: Sequence, counts: Sequence
) -> Iterator[list[Tensor]]:
    """Each rank's loss: of plain logits, of logits relative to the largest, of log-sum-exps."""
    each = list(zip(shares, sums, counts, strict=True))
    lse, y, m = p.lse, p.y_all, p.m
    yield [(lse - target * y - share * x).mean() for share, x, _ in each]
    yield [(lse - m - target * (y - m) - share * (x - k * m)).mean() for share, x, k in each]
    yield [(target * (lse - y) + share * (k * lse - x)).mean() for share, x, k in each]


def gradients(case: Case) -> Iterator[Idea]:
    p, e, v = Parts(case), case.plan.smoothing, case.plan.words
    soft, hot = p.over_entries(p.real.softmax(-1)), p.one_hot()
    near_by = torch.cat([torch.full_like(part, e / part.shape[-1]) for part in p.own], -1)
    label = (1 - e) * hot
    found = [
        ("gradient without smoothing", soft - hot),
        ("uniform share left out #1", soft - label),
        ("uniform share left out #2", (1 - e) * soft - label),
        ("softmax made smaller", (1 - e) * soft - label - e / v),
        ("over one entry less", soft - label - e / (v - 1)),
        ("no share for the target", soft - label - e / v * (1 - hot)),
        *(("factor of the sum", soft - label - share) for share in (e, 1 / v)),
        ("target in full", soft - hot - e / v),
        ("share of one rank's words #1", soft - label - near_by),
        ("other words only", soft - label - (1 - hot) * e / (v - 1)),
    ]
    if e:
        yield from ideas(SAYS, ((entry, p.weighed(gives)) for entry, gives in found))
    yield from of_the_gradient(case)


SMOOTHED_LOSS = Exercise(
    judge=judged(plans, ("words", "smoothing"), 4, losses, gradients), **SAYS.about
)
