"""The losses of lesson 07: by hand, with special labels, and differentiable.

Answers run on two and three ranks, on uneven shards, for three training steps. Cases and wrong
ideas for ignored, padded and smoothed labels are here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from course_classroom.judge.frame import Exercise
from course_classroom.judge.looking import THREE, TWO, Idea, ideas
from course_classroom.judge.words import Page
from course_lessons.lesson_07.ideas import FILLS, Parts, of_the_gradient, of_the_loss
from course_lessons.lesson_07.looks import TWO_SAYS, judged, judged_two
from course_lessons.lesson_07.trial import APART, FAR, LOW, PLAIN, SILENT, Case

SAYS, SMOOTHED = Page(__file__, "losses"), Page(__file__, "smoothed_loss")
# Ranks, and the unusual fields of a plan.
CASES = (
    (THREE, {}),
    (TWO, {}),
    (THREE, {"kind": FAR}),
    (TWO, {"kind": APART}),
    (THREE, {"kind": SILENT}),
)
# Ignored labels are below all entries, equal to an entry, or above all; all but one, or all.
IGNORED_CASES = (
    (THREE, {"ignore": -100, "ignored": "some"}),
    (TWO, {"kind": FAR, "ignore": 4, "ignored": "some"}),
    (TWO, {"ignore": -100, "ignored": "all"}),
    (THREE, {"ignore": -100, "ignored": "but one"}),
    (THREE, {"kind": SILENT, "ignore": 99, "ignored": "some"}),
    (TWO, {"kind": SILENT, "ignore": -100, "ignored": "all"}),
)
# Padding on one rank, on none, on most of three, and far above the entries.
PADDED_CASES = (
    (THREE, {"more": 4}),
    (TWO, {"kind": FAR}),
    (THREE, {"kind": LOW, "more": 32}),
    (TWO, {"more": 3, "padding": 1e4}),
)
SMOOTHED_CASES = (
    (THREE, {"smoothing": 0.1}),
    (TWO, {"smoothing": 0.4}),
    (THREE, {"kind": FAR, "smoothing": 0.1}),
    (TWO, {"kind": APART, "smoothing": 0.1}),
    (TWO, {"smoothing": 0.0}),
)


def ignored_losses(case: Case) -> Iterator[Idea]:
    """Yield wrong ideas about ignored labels."""
    if case.plan.ignored == "all":
        return
    p, n, t = Parts(case), case.n, case.plan.tokens
    count, total = p.kept.sum(), torch.where(p.kept, p.lse - p.y_all, 0.0).sum()
    strange = torch.where(p.kept, 0.0, p.lse).sum()  # of tokens whose target no rank has
    own = [p.kept[(p.y >= a) & (p.y < z)].sum() for a, z in case.spans]
    an_entry = 0 <= case.plan.ignore < case.plan.words
    found = [
        *(("target assumed on a different rank", [(total + strange) / k] * n) for k in (count, t)),
        *([("only a negative label", [(p.lse - p.y_all).sum() / t] * n)] if an_entry else []),
        ("mean over all tokens", [total / t] * n),
        *([("wrong token count", [total / 2] * n)] if count == 1 else []),
        ("counted on one rank", [total / many for many in own]),
        ("counted on every rank", [total / count / n] * n),
    ]
    yield from ideas(SAYS, found, n=n)
    yield from of_the_loss(case)


def ignored_gradients(case: Case) -> Iterator[Idea]:
    p, t = Parts(case), case.plan.tokens
    soft, hot, kept = p.over_entries(p.real.softmax(-1)), p.one_hot(), p.kept[:, None]
    for marks in (hot * kept, hot):
        for count in (p.kept.sum().clamp(min=1), t):
            gives = p.split((soft - marks) / count)
            yield from ideas(SAYS, {"ignored tokens still learn": gives})
    yield from ideas(SAYS, {"gradient over all tokens": p.split((soft - hot) * kept / t)})
    yield from of_the_gradient(case)


def padded_losses(case: Case) -> Iterator[Idea]:
    p, plan, n = Parts(case), case.plan, case.n
    if plan.rows > plan.words:
        wrong = ((entry, [p.loss(lse, p.y_all)] * n) for entry, lse in _with_padding(p))
        yield from ideas(SAYS, wrong)
    if plan.kind == PLAIN and not plan.padding:  # the last entry is some token's target
        yield from ideas(SAYS, {"the border of the padding": [torch.inf] * n})
    yield from of_the_loss(case)


def _with_padding(p: Parts) -> Iterator[tuple[str, Tensor]]:
    """Yield wrong ideas about the rows that are included, each with its log-sum-exp."""
    v, last = p.plan.words, p.case.spans[-1][0]
    zeros = torch.zeros(p.plan.tokens, p.plan.rows - v, dtype=torch.float64)
    sliced = [p.all[:, a:z][:, : v - a] for a, z in p.case.spans]
    parts = [
        ("padding takes part", p.all),
        ("zero is a logit", torch.cat((p.real, zeros), -1)),
        *(("padding not low enough", torch.cat((p.real, zeros + fill), -1)) for fill in FILLS),
        *(("the border of the padding", p.all[:, :end]) for end in (v - 1, v + 1)),
        ("only the last rank's padding", p.all[:, : max(last, v)]),
        ("a slice from the end", torch.cat(sliced, -1)),
    ]
    for entry, logits in parts:
        yield entry, logits.logsumexp(-1)
    for top in (p.all.amax(-1), p.m.clamp(min=0)):
        sums = (p.real - top[:, None]).exp().sum(-1)
        yield "padding in the largest logit", sums.log() + top


def padded_gradients(case: Case) -> Iterator[Idea]:
    p = Parts(case)
    learnt = (p.all - p.lse[:, None]).exp() - p.one_hot()
    yield from ideas(SAYS, {"padded rows learn": p.weighed(learnt)})
    yield from of_the_gradient(case)


def smoothed_losses(case: Case) -> Iterator[Idea]:
    if case.plan.smoothing:
        yield from ideas(SMOOTHED, _with_shares(Parts(case)))
    yield from of_the_loss(case)


def _with_shares(p: Parts) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield wrong shares of the label and wrong sums of logits, with each rank's loss."""
    n, e, v = p.n, p.plan.smoothing, p.plan.words
    every, own = ([p.sum] * n, [v] * n), (p.sum_r, p.widths)
    others = ([p.sum - p.y_all] * n, [v - 1] * n)
    means = ([sum(s / w for s, w in zip(p.sum_r, p.widths, strict=True))] * n, [n] * n)
    near_by = [e / w for w in p.widths]
    table = [  # the target's share, and the share of each entry in the sum
        ("no smoothing", 1, [0.0] * n, every),
        ("sum of logits not shared", 1 - e, [e / v] * n, own),
        ("share of one rank's entries #1", 1 - e, near_by, own),
        ("share of one rank's entries #1", 1 - e, near_by, every),
        ("share of one rank's entries #2", 1 - e, [share / n for share in near_by], every),
        ("share of one rank's entries #3", 1 - e, [e] * n, means),
        ("share of one rank's entries #3", 1 - e, [e / n] * n, means),
        ("other entries only", 1 - e, [e / (v - 1)] * n, others),
        ("ε over v − 1", 1 - e, [e / (v - 1)] * n, every),
        ("no share for the target", 1 - e, [e / v] * n, others),
        ("shares swapped", e, [(1 - e) / v] * n, every),
        ("target in full", 1, [e / v] * n, every),
        *(("factor of the sum", 1 - e, [share] * n, every) for share in (e, 1 / v, 1.0)),
        ("sign of the uniform part", 1 - e, [-e / v] * n, every),
    ]
    for entry, target, shares, sums in table:
        for gives in _ways(p, target, shares, *sums):
            yield entry, gives
    short = (1 - e) * (p.lse - p.y_all) - e / v * p.sum
    yield "only the target's log-sum-exp", [short.mean()] * n
    for sign in (1, -1):
        yield "mixed reference logits", [p.loss(p.lse + sign * e * p.m, p.y_all)] * n


def _ways(
    p: Parts, target: float, shares: Sequence, sums: Sequence, counts: Sequence
) -> Iterator[list[Tensor]]:
    """Yield each rank's loss, computed from logits, from shifted logits and from log-sum-exps."""
    each = list(zip(shares, sums, counts, strict=True))
    lse, y, m = p.lse, p.y_all, p.m
    yield [(lse - target * y - share * x).mean() for share, x, _ in each]
    yield [(lse - m - target * (y - m) - share * (x - k * m)).mean() for share, x, k in each]
    yield [(target * (lse - y) + share * (k * lse - x)).mean() for share, x, k in each]


def smoothed_gradients(case: Case) -> Iterator[Idea]:
    p, e, v = Parts(case), case.plan.smoothing, case.plan.words
    soft, hot = p.over_entries(p.real.softmax(-1)), p.one_hot()
    near_by = torch.cat([torch.full_like(part, e / part.shape[-1]) for part in p.own], -1)
    label = (1 - e) * hot
    found = [
        ("gradient without smoothing", soft - hot),
        ("uniform share left out #1", soft - label),
        ("uniform share left out #2", (1 - e) * soft - label),
        ("softmax made smaller", (1 - e) * soft - label - e / v),
        ("ε over v − 1", soft - label - e / (v - 1)),
        ("no share for the target", soft - label - e / v * (1 - hot)),
        *(("factor of the sum", soft - label - share) for share in (e, 1 / v)),
        ("target in full", soft - hot - e / v),
        ("share of one rank's entries #1", soft - label - near_by),
        ("other entries only", soft - label - (1 - hot) * e / (v - 1)),
    ]
    if e:
        yield from ideas(SMOOTHED, ((entry, p.weighed(gives)) for entry, gives in found))
    yield from of_the_gradient(case)


CUT_LOSS = Exercise(
    judge=judged(CASES, (), 3, of_the_loss, of_the_gradient), **Page(__file__, "cut_loss").about
)
IGNORED_LOSS = Exercise(
    judge=judged(IGNORED_CASES, ("ignore",), 3, ignored_losses, ignored_gradients),
    **Page(__file__, "ignored_loss").about,
)
PADDED_LOSS = Exercise(
    judge=judged(PADDED_CASES, ("words",), 3, padded_losses, padded_gradients),
    **Page(__file__, "padded_loss").about,
)
SMOOTHED_LOSS = Exercise(
    judge=judged(SMOOTHED_CASES, ("words", "smoothing"), 4, smoothed_losses, smoothed_gradients),
    **SMOOTHED.about,
)
TWO_COLLECTIVES = Exercise(judge=judged_two(CASES, of_the_loss, of_the_gradient), **TWO_SAYS.about)
