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
from course_lib.classroom.checks.words import Words

KINDS = [(THREE, PLAIN), (TWO, PLAIN), (THREE, FAR), (TWO, APART), (THREE, SILENT)]
SAYS = Words("""
taken for another rank's word: An ignored token's loss is log-sum-exp, without a target: each rank
  thought that another one had it. It should be 0.
only a negative label: Here the label that is ignored is an entry's id, and you have counted its
  tokens. Ignored is what equals ignore_index, whatever it is.
mean over all tokens: The sum is right and was divided by the number of all tokens. The mean is over
  those that count.
another number of tokens: The sum is right and was divided by two, and one token counts. Only where
  none does there is nothing to divide by.
counted on one rank: Each rank divides by the number of targets that it holds. The mean is over the
  tokens of all entries.
counted on every rank: The number of tokens was summed over the ranks, so the loss is {n} times too
  small. All ranks see the same tokens.
ignored tokens still learn: An ignored token's loss is 0 and its logits get a gradient all the same:
  the softmax of a token without a target pushes every entry down.
gradient over all tokens: The loss was divided by the tokens that count, its gradient by all tokens.
padding takes part: The padded rows have logits too, and these are in the sum of exponentials: the
  loss is too high by what they take of the softmax.
zero is a logit: The padded logits were set to 0. A logit of 0 has an exponential of 1, and takes
  part like any entry. What has to become 0 is the exponential.
padding not low enough: The padding's logits were set to a number such as -10,000, and the largest
  logit of a token may lie below that. What has no part has a logit of -inf.
padding in the largest logit: The padding takes no part in the sum, and it does in the largest
  logit, or a number in its place: where that is far above the real ones, no exponential is left.
  The largest of nothing is -inf.
the border of the padding: One row too many or too few takes part: entries are the rows 0 to
  vocabulary - 1.
padding on the last rank alone: The last rank's padding is left out, that of the rank before it
  takes part.
a slice from the end: On a rank that holds padding alone, vocabulary - start is negative, and
  `logits[:, :negative]` leaves out as many columns from the end. The number of real entries is
  never below 0.
padded rows learn: The loss knows which entries are real, the gradient does not: padded rows get
  one, and would not stay zero.
""")


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
    "cut_loss",
    "Forward and backward by hand",
    4,
    judged(cut_plans, (), 3, of_the_loss, of_the_gradient),
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
IGNORED_LOSS = Exercise(
    "ignored_loss",
    "Ignored targets",
    3,
    judged(ignored_plans, ("ignore",), 3, ignored_losses, ignored_gradients),
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
PADDED_LOSS = Exercise(
    "padded_loss",
    "Padding that takes no part",
    3,
    judged(padded_plans, ("words",), 3, padded_losses, padded_gradients),
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
