"""`uneven_loss` of lesson 06: positions and a mean over pieces of several lengths, one of them 0.

An answer is tried in two steps of training the table of positions; each wrong idea is worked out
and compared, and the ledger holds messages and bytes against a budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_06 import uneven_trial as trial
from course_lib.classroom.checks.lesson_06.uneven_values import Trial, losses
from course_lib.classroom.checks.looking import (
    ITEM,
    THREE,
    TWO,
    Idea,
    Looks,
    all_near,
    another_step,
    came_back,
    counted,
    fresh_seed,
    near,
    refuse_changed,
    refuse_general,
    refuse_idea,
)
from course_lib.layout import cut
from course_lib.ledger import forms


def judge_uneven(answer: Answer, judge: Judge) -> None:
    """Try uneven_loss; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    cases = [(THREE, 7), (TWO, 5), (THREE, 2)]
    LOOKS.at(answer, (_try(answer, judge, members, s, seed) for members, s in cases))


def _try(answer: Answer, judge: Judge, members: list[int], s: int, seed: int) -> Trial:
    sizes, when = trial.Sizes(4, s, 6, 9), f"{on(members)} with {s} tokens"
    empty = [rank for rank, tokens in enumerate(cut(s, len(members))) if not tokens]
    reports = judge.trial(
        answer,
        trial.run,
        sizes,
        seed,
        members=members,
        when=when,
        outside="the backward",
        empty=empty,
    )
    return Trial(reports, sizes, seed, when)


def _look_at_returned(one: Trial) -> None:
    refuse_none(one.reports, one.when, "the mean over all tokens")


def _look_at_shape(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        if report["out"] is None:
            raise Finding(
                "not a loss",
                f"Rank {rank} got {came_back(report)} back {one.when}; expected is a float64 "
                "tensor with one number in it.",
            )


def _look_at_inputs(one: Trial) -> None:
    refuse_changed(one, "x, the table or the target")


def _look_at_loss(one: Trial) -> None:
    outs = [report["out"] for report in one.reports]
    if all_near(outs, [one.steps[0][0]] * one.n):
        return
    empty = [rank for rank, t in enumerate(one.tokens) if not t]
    if empty and any(math.isnan(out) for out in outs):
        raise Finding(
            "no tokens",
            f"Rank {empty[0]} has no token {one.when}, and the mean of nothing is NaN. Divide "
            "once, by what all ranks have together.",
        )
    refuse_idea(outs, losses(one), one.when)
    b, s, h, _ = one.sizes
    refuse_general(
        outs,
        [one.steps[0][0]] * one.n,
        one.when,
        sizes={"sequences": b, "tokens": s, "elements of a token": h},
        what="loss",
    )
    raise Finding("wrong loss", f"That is not the mean over all tokens, {one.when}.")


def _look_at_gradients(one: Trial) -> None:
    _, dx, dtable = one.steps[0]
    for rank, report in enumerate(one.reports):
        if report["grads"] is None:
            raise Finding(
                "no way back",
                f"The loss is right on rank {rank}, and no gradient finds back from it, "
                f"{one.when}. A plain sum over the ranks keeps no graph; g of lesson 03 does.",
            )
    mine = dx.split(one.tokens, 1)
    dxs, tables = zip(*(report["grads"] for report in one.reports), strict=True)
    refuse_idea(dxs, _factors(one, mine), one.when)
    wrong = [r for r in range(one.n) if not near(dxs[r], mine[r])]
    if wrong:
        raise Finding(
            "wrong gradient",
            f"The loss is right. The gradient of x on rank {wrong[0]} is not that of one process, "
            f"{one.when}.",
        )
    own = []
    for start, part in zip(one.starts, mine, strict=True):
        alone = torch.zeros_like(dtable)
        alone[start : start + part.shape[1]] = part.sum(0)
        own.append(alone)
    unpaid = Idea(
        "the table's debt",
        "Each rank has the gradient of the rows that its own tokens read, and zeros in the others. "
        "The table is replicated: after the first step its copies differ.",
        own,
    )
    refuse_idea(tables, [unpaid], one.when)
    mean = Idea(
        "the table's mean",
        f"The table's gradient is divided by {one.n}: the ranks' parts of it add up, and are no "
        "estimates of one number.",
        [dtable / one.n] * one.n,
    )
    refuse_idea(tables, [mean], one.when)
    wrong = [r for r in range(one.n) if not near(tables[r], dtable)]
    if wrong:
        raise Finding(
            "wrong table",
            f"The gradient of the table on rank {wrong[0]} is not that of one process, {one.when}.",
        )


def _factors(one: Trial, mine: Sequence[Tensor]) -> Iterator[Idea]:
    yield Idea(
        "n times the gradient",
        f"The gradient of x is {one.n} times too large. The sum's backward has summed once more: "
        "every rank starts its backward from the same loss, and each summand's gradient is that of "
        "the sum.",
        [one.n * part for part in mine],
    )
    yield Idea(
        "gradient divided by n",
        f"The gradient of x is divided by {one.n}. The value is a mean over tokens, and no mean "
        "over ranks.",
        [part / one.n for part in mine],
    )


def _look_at_traffic(one: Trial) -> None:
    n, (*_, h, longest) = one.n, one.sizes
    two = forms.all_reduce(n, 2 * ITEM)
    table = forms.all_reduce(n, longest * h * ITEM)
    for rank, report in enumerate(one.reports):
        forward, backward = report["forward"], report["backward"]
        sent = counted(forward["ops"])
        head = f"Values are right. Rank {rank} sends {sent} forward, {one.when}. "
        if forward["bytes"] > two:
            raise Finding(
                "tokens on the way",
                f"{head}That is {forward['bytes']} bytes for a mean. Which number does another "
                "rank need of all your tokens?",
            )
        if sum(forward["ops"].values()) > 1:
            raise Finding(
                "two messages",
                f"{head}One will do: what each rank knows about the lengths need not be sent, and "
                "elements that are sent may travel together.",
            )
        if backward["bytes"] > table or sum(backward["ops"].values()) > 1:
            raise Finding(
                "over budget backward",
                f"{head}Backward it sends {backward['bytes']} bytes in "
                f"{sum(backward['ops'].values())} messages; one sum of the table's gradient is "
                f"{table:g} bytes.",
            )


def _look_at_steps(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        for step, (loss, dx, dtable) in enumerate(one.steps):
            seen = report["steps"][step] if step < len(report["steps"]) else {"grads": None}
            if not near(seen.get("other", 4 * loss), 4 * loss):  # x, table and target, twice each
                raise another_step(one, rank, step)
            right = [loss, dx.split(cut(dx.shape[1], one.n), 1)[rank], dtable]
            if not all_near([seen.get("out"), *(seen["grads"] or [])], right):
                raise another_step(one, rank, step)


LOOKS = Looks(
    returned=_look_at_returned,
    shape=_look_at_shape,
    unchanged=_look_at_inputs,
    value=_look_at_loss,
    gradients=_look_at_gradients,
    traffic=_look_at_traffic,
    later_steps=_look_at_steps,
)
UNEVEN_LOSS = Exercise(
    name="uneven_loss",
    title="A length that does not divide",
    points=3,
    judge=judge_uneven,
    when_right=(
        "Every token stood at its own position and counted once, on whichever rank it was; a rank "
        "without tokens gave a zero to the sum and no NaN. Gradients and two steps of training "
        "were those of one process, for one small message forward and the table's sum backward."
    ),
    hints=(
        "`course_lib.layout.cut(length, n)` says how many tokens each rank has. Where does yours "
        "begin? (`span` says it too.)",
        "A mean is a sum divided by a count. Which of the two can every rank work out alone? "
        "Then one element in the message is enough.",
        "Summing over the ranks in the forward: what is the gradient of one summand? Lesson 03 has "
        "the pair whose backward sends nothing.",
        "The table is a copy on every rank, and each rank reads other rows of it. Which pair "
        "stands before a copy that takes part in different work?",
    ),
)
