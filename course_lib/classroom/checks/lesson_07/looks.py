"""How each answer of lesson 07 is looked at: shape, loss, gradient, traffic, memory, later steps.

A wrong loss or gradient is held against what each wrong idea gives on every rank; the ideas are
computed from the trial's own numbers, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks import looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_07 import trial
from course_lib.classroom.checks.lesson_07.trial import APART, FAR, LOW, PLAIN, SILENT, Case, Plan
from course_lib.classroom.checks.looking import ITEM, Idea, Looks, all_near, near, refuse_idea
from course_lib.classroom.checks.words import Page, Words
from course_lib.ledger import forms

WHERE = {
    PLAIN: "",
    FAR: ", with logits of 10,000 and, every other token, of -10,000",
    LOW: ", with logits of -100,000 for every other token",
    APART: ", where one rank's logits are far above all others'",
    SILENT: ", where all of one rank's logits are -inf, and some tokens' about -100,000",
}
SAYS = Page("lesson_07/looks")
Ideas = Callable[[Case], Iterable[Idea]]
Plans = Callable[[int, int], Sequence[tuple[list[int], Plan]]]


class Trial(NamedTuple):
    reports: list[dict]
    case: Case
    when: str

    def right(self, which: int) -> list[Tensor]:
        """What each rank should have at the first step: its loss, 0, or its gradient, 1."""
        return [self.of(rank, 0)[which] for rank in range(self.case.n)]

    def of(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        loss, gradient = self.case.steps[step]
        return loss, gradient[:, slice(*self.case.spans[rank])]


def tried(
    answer: Answer, judge: Judge, plans: Plans, extras: tuple | None, wide: int = 1
) -> Iterable[Trial]:
    """The answer on its plans; `extras` are the fields of a plan that it gets besides, None for a
    function with a history; shards are `wide` times as wide as usual."""
    judge.take(answer, trial.__name__)
    seed = looking.fresh_seed()
    how, more = (trial.with_history, ()) if extras is None else (trial.by_hand, (extras,))
    for members, plan in plans(seed, wide * (19, 23, 25, 29)[seed % 4]):  # no shards are equal
        also = ""
        if plan.padding:
            also += f", with the padding's logits about {plan.padding:,.0f}"
        if plan.ignore is not None:
            also += f", with ignore_index={plan.ignore}"
            also += {"some": "", "all": " for all tokens"}.get(plan.ignored, " for all but one")
        if extras and "smoothing" in extras:
            also += f", with ε = {plan.smoothing:g}"
        when = f"{on(members)}{WHERE[plan.kind]}{also}"
        case = Case(plan, len(members))
        reports = judge.trial(
            answer, how, plan, *more, members=members, when=when, empty=case.without_entries
        )
        yield Trial(reports, case, when)


def judged(
    plans: Plans, extras: tuple, numbers: int, losses: Ideas, gradients: Ideas
) -> Callable[[Answer, Judge], None]:
    """The judge of a loss and a gradient by hand, for so many numbers a token."""
    looks = Looks(
        returned=look_at_pair,
        shape=look_at_shape,
        unchanged=look_at_inputs,
        value=lambda one: look_at_loss(one, losses),
        gradients=lambda one: look_at_gradient(one, gradients),
        traffic=lambda one: look_at_traffic(one, numbers),
        memory=look_at_largest,
        later_steps=look_at_steps,
    )
    return lambda answer, judge: looks.at(answer, tried(answer, judge, plans, extras))


def refuse(says: Words, entry: str, one: Trial, met: Callable[[dict], bool], **about) -> None:
    """Raise a Finding of the first rank whose report has `met`; the report fills in the words."""
    for rank, report in enumerate(one.reports):
        if met(report):
            raise says(entry, **{**report, **about, "rank": rank, "when": one.when})


def look_at_pair(one: Trial) -> None:
    refuse_none(one.reports, one.when, "a loss and a gradient")
    refuse(SAYS, "not a pair", one, lambda r: not r["pair"])


def look_at_shape(one: Trial) -> None:
    """A Finding where the pair is not one number and a gradient shaped like the logits."""
    every = [one.case.plan.tokens, one.case.plan.rows]
    refuse(SAYS, "no single loss", one, lambda r: r["loss"] is None)
    missing = [r for r in one.reports if r["gradient"] is None]
    entry = "gradient of all words" if every in [r["shape"] for r in missing] else "wrong shape"
    refuse(SAYS, entry, one, lambda r: r["gradient"] is None)


def look_at_inputs(one: Trial) -> None:
    looking.refuse_changed(one, "the caller's logits or targets")


def look_at_loss(one: Trial, ideas: Ideas) -> None:
    """A Finding where some rank's loss is not that of one process."""
    found, right = [report["loss"] for report in one.reports], one.right(0)
    if _only_logged(one, right) or all_near(found, right):
        return
    _look_for_ideas(one, found, right, ideas, "loss")
    if any(not near(loss, found[0]) for loss in found):
        raise SAYS("ranks disagree", when=one.when)
    both = ""
    if right[0].dim() == 0:  # one number, not one for each token
        both = f": wanted is {float(right[0]):.6g}, and there is {float(found[0]):.6g}"
    raise SAYS("wrong loss", when=one.when, both=both)


def _only_logged(one: Trial, right: list[Tensor]) -> bool:
    """Whether the losses are right and were made float32 at the very end, as for a log."""
    return all(
        report.get("narrow") and torch.equal(report["loss"].float(), loss.float())
        for report, loss in zip(one.reports, right, strict=True)
    )


def look_at_gradient(one: Trial, ideas: Ideas) -> None:
    found, right = [report["gradient"] for report in one.reports], one.right(1)
    if not all_near(found, right):
        _look_for_ideas(one, found, right, ideas, "gradient")
        raise SAYS("wrong gradient", when=one.when)


def _look_for_ideas(one: Trial, found: list, right: list, ideas: Ideas, what: str) -> None:
    """A Finding where an idea, or something not finite, or what any exercise may meet explains."""
    head = "The loss is right, its gradient is not. " if what == "gradient" else ""
    refuse_idea(found, ideas(one.case), one.when, head)
    if not all(bool(values.isfinite().all()) for values in found):
        _refuse_not_finite(one)
    sizes = {"tokens": one.case.plan.tokens, "entries": one.case.plan.words}
    looking.refuse_general(found, right, one.when, sizes=sizes, what=what)


def _refuse_not_finite(one: Trial) -> None:
    plan, empty = one.case.plan, one.case.without_entries
    gradients = [report["gradient"] for report in one.reports]
    fine = all(g is not None and g.isfinite().all() for g in gradients)
    reasons = {
        "nothing over nothing": plan.ignored == "all",
        "zero times infinity #1": plan.padding > 0,
        "rank without a word": bool(empty),
        "overflow": plan.kind in (FAR, LOW, APART),
        "zero times infinity #2": plan.kind == SILENT and fine,
        "no largest logit": plan.kind == SILENT,
        "not finite": True,
    }
    entry = next(entry for entry, met in reasons.items() if met)
    raise SAYS(entry, when=one.when, rank=empty[0] if empty else 0)


def look_at_traffic(one: Trial, numbers: int) -> None:
    """So many numbers a token may be summed, and no logits."""
    fair = numbers * forms.all_reduce(one.case.n, one.case.plan.tokens * ITEM)
    refuse_logits_on_the_way(one, fair)
    said = {3: "three", 4: "four"}[numbers]
    refuse(SAYS, "over budget", one, lambda r: r["bytes"] > fair, fair=fair, numbers=said)


def refuse_logits_on_the_way(one: Trial, fair: float) -> None:
    """A Finding where more was sent than is fair, and something was as large as a rank's logits."""

    def met(report: dict) -> bool:
        own = report["wanted"][0] * report["wanted"][1]
        return report["bytes"] > fair and any(own and many >= own for many in report["sent"])

    refuse(SAYS, "logits on the way", one, met)


def look_at_largest(one: Trial) -> None:
    """No tensor may be larger than the largest shard, but for a column or two."""
    column, (a, z) = one.case.plan.tokens * ITEM, one.case.spans[0]
    most = column * (z - a + 2)
    refuse(SAYS, "not sharded", one, lambda r: r["largest"] > most, shard=column * (z - a))


def look_at_steps(one: Trial) -> None:
    """A Finding where a later step goes another way than one process does."""
    for rank, report in enumerate(one.reports):
        for step, mine in enumerate(report["steps"]):
            loss, gradient = one.of(rank, step)
            loss = loss.float().double() if mine.get("narrow") else loss
            if not (near(mine["loss"], loss) and near(mine["gradient"], gradient)):
                raise looking.another_step(one, rank, step)
    if any(report["reused"] for report in one.reports):
        raise SAYS("one buffer for two results", when=one.when)
