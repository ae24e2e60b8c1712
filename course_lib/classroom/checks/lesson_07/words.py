"""`padded_loss` of lesson 07: which rows take part.

A padded vocabulary has rows that are no entries, a whole rank of them in one trial.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_07 import ideas, looks, trial
from course_lib.classroom.checks.lesson_07.by_hand import TOKENS, exercise, fresh
from course_lib.classroom.checks.lesson_07.case import FAR, LOW, Case, Plan
from course_lib.classroom.checks.looking import THREE, TWO, Idea


def judge_padded(answer: Answer, judge: Judge) -> None:
    """Padding on one rank, on most of two, and a rank that holds nothing else."""
    judge.take(answer, trial.__name__)
    seed, v = fresh()
    plans = [
        (THREE, Plan(seed, TOKENS, v, v + 4)),
        (TWO, Plan(seed, TOKENS, v, v, FAR)),
        (THREE, Plan(seed, TOKENS, v, 2 * v, LOW)),
        (TWO, Plan(seed, TOKENS, v, v + 3, padding=1e4)),
    ]
    trials = (looks.tried(answer, judge, members, plan, (plan.words,)) for members, plan in plans)
    looks.looks_at_pair(padded_losses, padded_gradients, (3, "three")).at(answer, trials)


def padded_losses(case: Case) -> Iterator[Idea]:
    p, n = ideas.Parts(case), case.n
    pads = case.plan.rows - case.plan.words
    if pads:
        yield Idea(
            "padding takes part",
            "The padded rows have logits too, and these are in the sum of exponentials: "
            "the loss is too high by what they take of the softmax.",
            [p.loss(p.all.logsumexp(-1), p.y_all)] * n,
        )
        zeros = torch.zeros(case.plan.tokens, pads, dtype=torch.float64)
        yield Idea(
            "zero is a logit",
            "The padded logits were set to 0. A logit of 0 has an exponential of 1, and takes part "
            "like any entry. What has to become 0 is the exponential.",
            [p.loss(torch.cat((p.real, zeros), -1).logsumexp(-1), p.y_all)] * n,
        )
        for fill in ideas.FILLS:
            yield Idea(
                "padding not low enough",
                f"The padding's logits were set to {fill:,.0f}, and the largest logit of a token "
                "may lie below that. What has no part has a logit of -inf.",
                [p.loss(torch.cat((p.real, zeros + fill), -1).logsumexp(-1), p.y_all)] * n,
            )
        for largest in (p.all.amax(-1), p.m.clamp(min=0)):
            yield Idea(
                "padding in the largest logit",
                "The padding takes no part in the sum, and it does in the largest logit, or a "
                "number in its place: where that is far above the real ones, no exponential is "
                "left. The largest of nothing is -inf.",
                [p.loss((p.real - largest[:, None]).exp().sum(-1).log() + largest, p.y_all)] * n,
            )
        for entries in (case.plan.words - 1, case.plan.words + 1):
            yield Idea(
                "the border of the padding",
                "One row too many or too few takes part: entries are the rows 0 to vocabulary - 1.",
                [p.loss(p.all[:, :entries].logsumexp(-1), p.y_all)] * n,
            )
        a, _ = case.spans[-1]
        yield Idea(
            "padding on the last rank alone",
            "The last rank's padding is left out, that of the rank before it takes part.",
            [p.loss(p.all[:, : max(a, case.plan.words)].logsumexp(-1), p.y_all)] * n,
        )
        sliced = [p.all[:, a:z][:, : case.plan.words - a] for a, z in case.spans]
        yield Idea(
            "a slice from the end",
            "On a rank that holds padding alone, vocabulary - start is negative, and "
            "`logits[:, :negative]` leaves out as many columns from the end. The number of real "
            "entries is never below 0.",
            [p.loss(torch.cat(sliced, -1).logsumexp(-1), p.y_all)] * n,
        )
    yield from ideas.of_the_loss(case)


def padded_gradients(case: Case) -> Iterator[Idea]:
    p = ideas.Parts(case)
    soft, hot = (p.all - p.lse[:, None]).exp(), p.one_hot(ideas.here)
    yield Idea(
        "padded rows learn",
        "The loss knows which entries are real, the gradient does not: padded rows get "
        "one, and would not stay zero.",
        p.weighed(soft - hot),
    )
    yield from ideas.of_the_gradient(case)


PADDED_LOSS = exercise(
    "padded_loss",
    "Padding that takes no part",
    3,
    judge_padded,
    when_right=(
        "Padded rows take no part: not in the largest logit, not in the sum, and their gradient is "
        "0, so that they stay what they are. Also where a rank holds nothing else. The caller's "
        "logits were left alone."
    ),
    hints=(
        "How many of this rank's columns are real entries? It can be all, some or none.",
        "What has to be the exponential of a padded logit, and what has the logit to be for that? "
        "Or leave those columns out, and put a gradient in their place at the end.",
        "A rank without a real entry still calls every collective. What is the largest of nothing, "
        "as far as a maximum over ranks is concerned, and the sum?",
    ),
)
