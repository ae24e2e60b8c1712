"""`cut_loss`, `ignored_loss` and `padded_loss` of lesson 07: loss and gradient by hand.

Tried on two and three ranks, on uneven shards, in three steps of training; the second also with a
label that is an entry, and with one token that counts, and none; the third with rows that are no
entries, a whole rank of them in one trial.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.lesson_07.ideas import FILLS, Parts, of_the_gradient, of_the_loss
from course_lib.classroom.checks.lesson_07.looks import judged
from course_lib.classroom.checks.lesson_07.trial import (
    APART,
    FAR,
    LOW,
    PLAIN,
    SILENT,
    TOKENS,
    Case,
    Plan,
)
from course_lib.classroom.checks.looking import THREE, TWO, Idea, ideas
from course_lib.classroom.checks.words import Page

KINDS = [(THREE, PLAIN), (TWO, PLAIN), (THREE, FAR), (TWO, APART), (THREE, SILENT)]
SAYS = Page("lesson_07/by_hand")


def cut_plans(seed: int, v: int) -> list[tuple[list[int], Plan]]:
    return [(members, Plan(seed, TOKENS, v, v, kind)) for members, kind in KINDS]


def ignored_plans(seed: int, v: int) -> list[tuple[list[int], Plan]]:
    """Labels that are ignored: below all entries, an entry's own, beyond all; all but one; all."""
    cases = (
        (THREE, PLAIN, -100, "some"),
        (TWO, FAR, 4, "some"),
        (TWO, PLAIN, -100, "all"),
        (THREE, PLAIN, -100, "but one"),
        (THREE, SILENT, v + 1, "some"),
    )
    return [
        (members, Plan(seed, TOKENS, v, v, kind, ignore=label, ignored=which))
        for members, kind, label, which in cases
    ]


def ignored_losses(case: Case) -> Iterator[Idea]:
    """What an ignored label is taken for."""
    if case.plan.ignored == "all":
        return
    p, n, t = Parts(case), case.n, case.plan.tokens
    count, total = p.kept.sum(), torch.where(p.kept, p.lse - p.y_all, 0.0).sum()
    strange = torch.where(p.kept, 0.0, p.lse).sum()  # of tokens whose target no rank has
    own = [p.kept[(p.y >= a) & (p.y < z)].sum() for a, z in case.spans]
    an_entry = 0 <= case.plan.ignore < case.plan.words
    found = [
        *(("taken for another rank's word", [(total + strange) / k] * n) for k in (count, t)),
        *([("only a negative label", [(p.lse - p.y_all).sum() / t] * n)] if an_entry else []),
        ("mean over all tokens", [total / t] * n),
        *([("another number of tokens", [total / 2] * n)] if count == 1 else []),
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


def padded_plans(seed: int, v: int) -> list[tuple[list[int], Plan]]:
    """Padding on one rank, none, on most of three, and far above the entries."""
    return [
        (THREE, Plan(seed, TOKENS, v, v + 4)),
        (TWO, Plan(seed, TOKENS, v, v, FAR)),
        (THREE, Plan(seed, TOKENS, v, 2 * v, LOW)),
        (TWO, Plan(seed, TOKENS, v, v + 3, padding=1e4)),
    ]


def padded_losses(case: Case) -> Iterator[Idea]:
    p, plan = Parts(case), case.plan
    if plan.rows > plan.words:
        yield from ideas(
            SAYS, ((entry, [p.loss(*lse)] * case.n) for entry, *lse in _with_padding(p))
        )
    if plan.kind == PLAIN and not plan.padding:  # the last entry is some token's target
        yield from ideas(SAYS, {"the border of the padding": [torch.inf] * case.n})
    yield from of_the_loss(case)


def _with_padding(p: Parts) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Wrong ideas of which rows take part, each with its log-sum-exp."""
    v, last = p.plan.words, p.case.spans[-1][0]
    zeros = torch.zeros(p.plan.tokens, p.plan.rows - v, dtype=torch.float64)
    sliced = [p.all[:, a:z][:, : v - a] for a, z in p.case.spans]
    parts = [
        ("padding takes part", p.all),
        ("zero is a logit", torch.cat((p.real, zeros), -1)),
        *(("padding not low enough", torch.cat((p.real, zeros + fill), -1)) for fill in FILLS),
        *(("the border of the padding", p.all[:, :end]) for end in (v - 1, v + 1)),
        ("padding on the last rank alone", p.all[:, : max(last, v)]),
        ("a slice from the end", torch.cat(sliced, -1)),
    ]
    for entry, logits in parts:
        yield entry, logits.logsumexp(-1), p.y_all
    for top in (p.all.amax(-1), p.m.clamp(min=0)):
        sums = (p.real - top[:, None]).exp().sum(-1)
        yield "padding in the largest logit", sums.log() + top, p.y_all


def padded_gradients(case: Case) -> Iterator[Idea]:
    p = Parts(case)
    learnt = (p.all - p.lse[:, None]).exp() - p.one_hot()
    yield from ideas(SAYS, {"padded rows learn": p.weighed(learnt)})
    yield from of_the_gradient(case)


CUT_LOSS = Exercise(
    judge=judged(cut_plans, (), 3, of_the_loss, of_the_gradient), **Page("lesson_07/cut_loss").about
)
IGNORED_LOSS = Exercise(
    judge=judged(ignored_plans, ("ignore",), 3, ignored_losses, ignored_gradients),
    **Page("lesson_07/ignored_loss").about,
)
PADDED_LOSS = Exercise(
    judge=judged(padded_plans, ("words",), 3, padded_losses, padded_gradients),
    **Page("lesson_07/padded_loss").about,
)
