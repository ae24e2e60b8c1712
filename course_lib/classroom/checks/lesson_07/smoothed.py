"""`smoothed_loss` of lesson 07: labels of which each entry of the vocabulary has a share.

A share has to be one of all entries, not of one rank's; what each wrong share gives stands here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_07 import ideas, looks, trial
from course_lib.classroom.checks.lesson_07.by_hand import TOKENS, exercise, fresh
from course_lib.classroom.checks.lesson_07.case import FAR, PLAIN, Case, Plan
from course_lib.classroom.checks.looking import THREE, TWO, Idea


def judge_smoothed(answer: Answer, judge: Judge) -> None:
    judge.take(answer, trial.__name__)
    seed, v = fresh()
    cases = [(THREE, PLAIN, 0.1), (TWO, PLAIN, 0.4), (THREE, FAR, 0.1), (TWO, PLAIN, 0.0)]
    trials = (
        looks.tried(
            answer,
            judge,
            members,
            Plan(seed, TOKENS, v, v, kind, smoothing=e),
            (v, e),
            f"{' and' if kind == FAR else ', with'} ε = {e:g}",
        )
        for members, kind, e in cases
    )
    looks.looks_at_pair(smoothed_losses, smoothed_gradients, (4, "four")).at(answer, trials)


def smoothed_losses(case: Case) -> Iterator[Idea]:
    p, n = ideas.Parts(case), case.n
    e, v = case.plan.smoothing, case.plan.words
    if not e:
        yield from ideas.of_the_loss(case)
        return
    widths = [part.shape[-1] for part in p.own]
    plain = p.lse - p.y_all
    yield Idea(
        "no smoothing",
        "That is the loss without smoothing: all of the target's share is still at one entry.",
        [plain.mean()] * n,
    )
    yield Idea(
        "sum of logits not shared",
        "The uniform part reads every entry's logit, and each rank has put in those of its own "
        "entries alone.",
        [p.loss(p.lse, p.y_all, own) for own in p.sum_r],
    )
    for text, own in (("", p.sum_r), (", though the sum itself is shared", [p.sum] * n)):
        yield Idea(
            "share of one rank's words",
            f"Each entry's share was computed as ε over the entries of one rank{text}. It is ε "
            "over the whole vocabulary.",
            [
                (p.lse - (1 - e) * p.y_all - e / w * s).mean()
                for w, s in zip(widths, own, strict=True)
            ],
        )
    yield Idea(
        "share of one rank's words",
        "Each rank took the vocabulary for n times its own entries. Shards have different lengths; "
        "how many entries there are is `vocabulary`.",
        [(p.lse - (1 - e) * p.y_all - e / (w * n) * p.sum).mean() for w in widths],
    )
    shared = torch.stack([s / w for s, w in zip(p.sum_r, widths, strict=True)]).sum(0)
    for parts, how in ((1, "added up"), (n, "averaged")):
        yield Idea(
            "share of one rank's words",
            f"Each rank's mean over its own entries was taken, and these were {how}. Shards have "
            "different lengths, and an entry's share is ε over the whole vocabulary.",
            [(p.lse - (1 - e) * p.y_all - e * shared / parts).mean()] * n,
        )
    others = e / (v - 1) * (p.sum - p.y_all)
    yield Idea(
        "other words only",
        "The target keeps 1 - ε and the others share ε. That is smoothing too, and not torch's: "
        "there all entries share ε, the target among them.",
        [(p.lse - (1 - e) * p.y_all - others).mean()] * n,
    )
    for losses in (
        p.lse - (1 - e) * p.y_all - e / (v - 1) * p.sum,
        (1 - e) * plain + e / (v - 1) * (v * p.lse - p.sum),
    ):
        yield Idea(
            "over one entry less",
            "ε was divided by v - 1, and the target has a share of it as well. All v entries share "
            "ε, so each has ε/v.",
            [losses.mean()] * n,
        )
    for losses in (
        p.lse - (1 - e) * p.y_all - e / v * (p.sum - p.y_all),
        (1 - e) * plain + e / v * ((v - 1) * p.lse - p.sum + p.y_all),
    ):
        yield Idea(
            "no share for the target",
            "Each of the other entries has ε/v, and the target 1 - ε alone: together less than 1. "
            "The target has its ε/v as well.",
            [losses.mean()] * n,
        )
    yield Idea(
        "the shares turned round",
        "The target has ε, and the uniform part 1 - ε. It is the other way round.",
        [(p.lse - e * p.y_all - (1 - e) / v * p.sum).mean()] * n,
    )
    yield Idea(
        "log-sum-exp of the target alone",
        "The uniform part is made of losses too, log-sum-exp minus logit, each entry's; the first "
        "half of it is missing.",
        [((1 - e) * plain - e / v * p.sum).mean()] * n,
    )
    yield Idea(
        "target in full",
        "The target's loss still counts in full, and the uniform part comes on top. The shares "
        "have to add up to 1.",
        [(plain + e * (p.lse - p.sum / v)).mean()] * n,
    )
    yield Idea(
        "target in full",
        "The target's logit still counts in full, and the uniform part comes on top. The shares "
        "have to add up to 1.",
        [(plain - e * p.sum / v).mean()] * n,
    )
    for text, sign in (
        ("The sum over all entries is of l - m, while log S + m belongs to plain logits", 1),
        ("The sum over all entries is of plain logits l, while log S alone belongs to l - m", -1),
    ):
        yield Idea(
            "sum below another number",
            f"{text}, with m the largest: one of the loss's terms is relative to m, another is "
            "not. Take all of them plain, or all relative to m.",
            [p.loss(p.lse + sign * e * p.m, p.y_all)] * n,
        )
    for text, share in (("1/v", e), ("ε", 1 / v), ("ε/v", 1.0)):
        for losses in (
            p.lse - (1 - e) * p.y_all - share * p.sum,  # of plain logits
            p.lse - p.m - (1 - e) * (p.y_all - p.m) - share * (p.sum - v * p.m),  # of l - m
            (1 - e) * plain + share * (v * p.lse - p.sum),  # of nll
        ):
            yield Idea(
                "factor of the sum",
                f"The sum over all entries was taken without its factor {text}: each entry's share "
                "of the label is ε/v.",
                [losses.mean()] * n,
            )
    yield from ideas.of_the_loss(case)


def smoothed_gradients(case: Case) -> Iterator[Idea]:
    p = ideas.Parts(case)
    e, v = case.plan.smoothing, case.plan.words
    soft, hot = p.softmax(), p.one_hot(ideas.here)
    if e:
        yield Idea(
            "gradient without smoothing",
            "That is the gradient of the loss without smoothing, softmax minus one-hot.",
            p.weighed(soft - hot),
        )
        yield Idea(
            "uniform share left out",
            "The target's share is smaller, and what it lost went to no entry: from every logit's "
            "gradient a small share is subtracted.",
            p.weighed(soft - (1 - e) * hot),
        )
        yield Idea(
            "uniform share left out",
            "All of softmax minus one-hot was made smaller. The softmax itself counts in "
            "full; only the label is spread out.",
            p.weighed((1 - e) * (soft - hot)),
        )
        yield Idea(
            "softmax made smaller",
            "The softmax was multiplied by 1 - ε as well. It counts in full: only the label is "
            "spread out.",
            p.weighed((1 - e) * soft - (1 - e) * hot - p.uniform()),
        )
        spread = torch.full_like(soft, e / (v - 1))
        yield Idea(
            "over one entry less",
            "The loss divides ε by v, its gradient by v - 1.",
            p.weighed(soft - (1 - e) * hot - spread),
        )
        yield Idea(
            "no share for the target",
            "The target has its ε/v in the loss, and not in the gradient.",
            p.weighed(soft - (1 - e) * hot - p.uniform() * (1 - hot)),
        )
        for text, share in (("1/v", e), ("ε", 1 / v)):
            yield Idea(
                "factor of the sum",
                f"Each logit's share of the label lacks its factor {text}: it is ε/v.",
                p.weighed(soft - (1 - e) * hot - share),
            )
        yield Idea(
            "target in full",
            "The label still has its 1, and the uniform share comes on top: together more than 1.",
            p.weighed(soft - hot - p.uniform()),
        )
        near_by = torch.cat([torch.full_like(part, e / part.shape[-1]) for part in p.own], -1)
        yield Idea(
            "share of one rank's words",
            "Each logit's share was computed as ε over the entries of one rank; it is ε over the "
            "whole vocabulary.",
            p.weighed(soft - (1 - e) * hot - near_by),
        )
        others = (1 - hot) * e / (v - 1)
        yield Idea(
            "other words only",
            "The loss lets all entries share ε, its gradient all but the target.",
            p.weighed(soft - (1 - e) * hot - others),
        )
    yield from ideas.of_the_gradient(case)


SMOOTHED_LOSS = exercise(
    "smoothed_loss",
    "Label smoothing over a sharded vocabulary",
    3,
    judge_smoothed,
    when_right=(
        "Loss and gradient are torch's with label_smoothing, on two and three ranks, also with "
        "logits of 10,000 and with no smoothing at all. The uniform part needed one number a token "
        "more, the sum of the logits; its gradient is the same small number everywhere, and local."
    ),
    hints=(
        "Write the uniform part of the loss out: a mean over all entries j of log Σ exp - lⱼ. What "
        "of it is known already, and which sum is new?",
        "The new sum has a term on each rank. Over how many entries is it, when it is complete?",
        "The softmax does not know of smoothing. The label does: what stands in the place of the "
        "one-hot now, at the target and everywhere else?",
    ),
)
