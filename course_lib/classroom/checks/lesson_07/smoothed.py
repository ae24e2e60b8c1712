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
from course_lib.classroom.checks.words import Words

SAYS = Words("""
no smoothing: That is the loss without smoothing: all of the target's share is still at one entry.
sum of logits not shared: The uniform part reads every entry's logit, and each rank has put in those
  of its own entries alone.
share of one rank's words #1: Each entry's share was computed as ε over the entries of one rank. It
  is ε over the whole vocabulary.
share of one rank's words #2: Each rank took the vocabulary for n times its own entries. Shards have
  different lengths; how many entries there are is `vocabulary`.
share of one rank's words #3: Each rank's mean over its own entries was taken, and these were added
  up or averaged. Shards have different lengths, and an entry's share is ε over the whole
  vocabulary.
other words only: The target keeps 1 - ε and the others share ε. That is smoothing too, and not
  torch's: there all entries share ε, the target among them.
over one entry less: ε was divided by v - 1, and the target has a share of it as well. All v entries
  share ε, so each has ε/v.
no share for the target: Each of the other entries has ε/v, and the target 1 - ε alone: together
  less than 1. The target has its ε/v as well.
the shares turned round: The target has ε, and the uniform part 1 - ε. It is the other way round.
log-sum-exp of the target alone: The uniform part is made of losses too, log-sum-exp minus logit,
  each entry's; the first half of it is missing.
target in full: The target still counts in full, and the uniform part comes on top. The shares of
  the label have to add up to 1.
sum below another number: One of the loss's terms is relative to the largest logit m, another is
  not. Take all of them plain, or all relative to m: the sum over all entries is of l - m where
  log S stands alone, and of l where it is log S + m.
factor of the sum: The sum over all entries was taken without all of its factor: each entry's share
  of the label is ε/v.
sign of the uniform part: The sum over all entries is taken off, like the target's logit: each
  entry's loss is log-sum-exp minus its logit.
gradient without smoothing: That is the gradient of the loss without smoothing, softmax minus
  one-hot.
uniform share left out #1: The target's share is smaller, and what it lost went to no entry: from
  every logit's gradient a small share is subtracted.
uniform share left out #2: All of softmax minus one-hot was made smaller. The softmax itself counts
  in full; only the label is spread out.
softmax made smaller: The softmax was multiplied by 1 - ε as well. It counts in full: only the label
  is spread out.
""")


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
    "smoothed_loss",
    "Label smoothing over a sharded vocabulary",
    3,
    judged(plans, ("words", "smoothing"), 4, losses, gradients),
    when_right=(
        "Loss and gradient are torch's with label_smoothing, on two and three ranks, also with "
        "logits of 10,000, with ranks far apart and with no smoothing at all. The uniform part "
        "needed one number a token more, the sum of the logits; its gradient is the same small "
        "number everywhere, and local."
    ),
    hints=(
        "Write the uniform part of the loss out: a mean over all entries j of log Σ exp - lⱼ. What "
        "of it is known already, and which sum is new?",
        "The new sum has a term on each rank. Over how many entries is it, when it is complete?",
        "The softmax does not know of smoothing. The label does: what stands in the place of the "
        "one-hot now, at the target and everywhere else?",
    ),
)
