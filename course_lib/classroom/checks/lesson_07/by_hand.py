"""`cut_loss` and `ignored_loss` of lesson 07: loss and gradient of cut logits, by hand.

Tried on two and three ranks, on uneven shards, in three steps of training; the second also with a
label that is a word, and with nothing that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_07 import ideas, looks, trial
from course_lib.classroom.checks.lesson_07.case import APART, FAR, PLAIN, SILENT, Case, Plan
from course_lib.classroom.checks.looking import THREE, TWO, Idea, fresh_seed

TOKENS = 18  # divides by 2 and 3, so that a budget is a whole number; as wide as no shard


def fresh() -> tuple[int, int]:
    """A seed, and a number of words that neither 2 nor 3 divides."""
    seed = fresh_seed()
    return seed, (19, 23, 25, 29)[seed % 4]


def judge_cut(answer: Answer, judge: Judge) -> None:
    """Try cut_loss; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed, v = fresh()
    cases = [(THREE, PLAIN), (TWO, PLAIN), (THREE, FAR), (TWO, APART), (THREE, SILENT)]
    trials = (
        looks.tried(answer, judge, members, Plan(seed, TOKENS, v, v, kind), ())
        for members, kind in cases
    )
    looks.looks_at_pair(ideas.of_the_loss, ideas.of_the_gradient, (3, "three")).at(answer, trials)


def judge_ignored(answer: Answer, judge: Judge) -> None:
    """Labels that are ignored: below all words, a word's own, all of them, beyond all words."""
    judge.take(answer, trial.__name__)
    seed, v = fresh()
    cases = [
        (THREE, PLAIN, -100, "some"), (TWO, FAR, 4, "some"), (TWO, PLAIN, -100, "all"),
        (THREE, SILENT, v + 1, "some"),
    ]  # fmt: skip
    plans = [
        (members, Plan(seed, TOKENS, v, v, kind, ignore=label, ignored=which))
        for members, kind, label, which in cases
    ]
    trials = (looks.tried(answer, judge, members, plan, (plan.ignore,)) for members, plan in plans)
    looks.looks_at_pair(ignored_losses, ignored_gradients, (3, "three")).at(answer, trials)


def ignored_losses(case: Case) -> Iterator[Idea]:
    """What an ignored label is taken for."""
    if case.plan.ignored == "all":
        yield Idea(
            "nothing over nothing",
            "With every token ignored the mean is 0/0, which is no number. It is defined as 0 "
            "here, so that training goes on.",
            [torch.tensor(torch.nan, dtype=torch.float64)] * case.n,
        )
        return
    p, n = ideas.Parts(case), case.n
    t, count = case.plan.tokens, p.kept.sum()
    losses = torch.where(p.kept, p.lse - p.y_all, 0.0).sum()
    strange = torch.where(p.kept, 0.0, p.lse).sum()  # of tokens whose target no rank has
    for divisor in (count, t):
        yield Idea(
            "taken for another rank's word",
            "An ignored token's loss is log-sum-exp, without a target: each rank thought that "
            "another one had it. It should be 0.",
            [(losses + strange) / divisor] * n,
        )
    if 0 <= case.plan.ignore < case.plan.words:
        yield Idea(
            "only a negative label",
            "Here the label that is ignored is an entry's id, and you have counted its tokens. "
            "Ignored is what equals ignore_index, whatever it is.",
            [(p.lse - p.y_all).sum() / t] * n,
        )
    yield Idea(
        "mean over all tokens",
        "The sum is right and was divided by the number of all tokens. The mean is over those "
        "that count.",
        [losses / t] * n,
    )
    own = [p.kept[(p.y >= a) & (p.y < z)].sum() for a, z in case.spans]
    yield Idea(
        "counted on one rank",
        "Each rank divides by the number of targets that it holds. The mean is over the tokens of "
        "all entries.",
        [losses / many for many in own],
    )
    yield Idea(
        "counted on every rank",
        f"The number of tokens was summed over the ranks, so the loss is {n} times too small. All "
        "ranks see the same tokens.",
        [losses / count / n] * n,
    )
    yield from ideas.of_the_loss(case)


def ignored_gradients(case: Case) -> Iterator[Idea]:
    p = ideas.Parts(case)
    soft, hot = p.softmax(), p.one_hot(ideas.here)
    count = p.kept.sum().clamp(min=1)
    for divisor in (count, case.plan.tokens):
        yield Idea(
            "ignored tokens still learn",
            "An ignored token's loss is 0 and its logits get a gradient all the same: the softmax "
            "of a token without a target, which pushes every entry down.",
            p.split((soft - torch.where(p.kept[:, None], hot, 0.0)) / divisor),
        )
        yield Idea(
            "ignored tokens still learn",
            "An ignored token's loss is 0 and its logits get a gradient all the same.",
            p.split((soft - hot) / divisor),
        )
    yield Idea(
        "gradient over all tokens",
        "The loss was divided by the tokens that count, its gradient by all tokens.",
        p.split((soft - hot) * p.kept[:, None] / case.plan.tokens),
    )
    yield from ideas.of_the_gradient(case)


def exercise(name: str, title: str, points: int, judge: Callable, **said) -> Exercise:
    return Exercise(name=name, title=title, points=points, judge=judge, **said)


CUT_LOSS = exercise(
    "cut_loss",
    "Forward and backward by hand",
    4,
    judge_cut,
    when_right=(
        "Loss, gradient and three steps of training are those of one process in float64, on two "
        "and three ranks: with targets at both edges of every shard, logits of 10,000 and "
        "-10,000, ranks far apart, and a rank whose logits are all -inf. Sent were a few numbers a "
        "token, backward nothing, and no tensor was as wide as the vocabulary."
    ),
    hints=(
        "Write the loss of one token with all its logits. Which three numbers does it read? For "
        "each: what does a rank know of it, and is the total a sum or a maximum of that?",
        "`torch.where(here, x, 0.0)` with `here` true where the target is one of this rank's "
        "entries. `clamp` keeps an index in range where it does not.",
        "The gradient of a token's loss is softmax minus one-hot. After the forward, which of the "
        "two needs something from another rank?",
        "The loss is a mean: how much of each token's gradient is left?",
    ),
)
IGNORED_LOSS = exercise(
    "ignored_loss",
    "Ignored targets",
    3,
    judge_ignored,
    when_right=(
        "Ignored tokens cost nothing and teach nothing, whether their label is -100, an entry's "
        "id, or beyond the vocabulary; the mean is over the rest; and where nothing counts the "
        "loss is 0 and so is its gradient. All ranks know the labels, so no message was needed."
    ),
    hints=(
        "Work out what your loss is for a token whose target no rank has.",
        "Which tokens count is the same question on every rank, with the same answer. Ask it once, "
        "at the end: for the loss, for the gradient, and for the number to divide by.",
        "What is the mean over no token? `clamp(min=…)` on a count is one way to say what it is "
        "here.",
    ),
)
