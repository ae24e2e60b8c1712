"""Looks at each answer of lesson 07: shape, loss, gradient, traffic, memory and later steps.

A wrong loss or gradient is compared with the values of each wrong idea on every rank. These values
are computed from the trial's own numbers, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_classroom.judge import looking
from course_classroom.judge.answer import Answer
from course_classroom.judge.judge import Judge, on, refuse_none
from course_classroom.judge.looking import ITEM, Idea, Looks, alike, all_near, near
from course_classroom.judge.words import Look, Page, Words
from course_lessons.lesson_07 import trial
from course_lessons.lesson_07.trial import APART, FAR, LOW, PLAIN, SILENT, TOKENS, Case, Plan
from course_lib.ledger import forms

WHERE = {
    PLAIN: "",
    FAR: ", with logits of 10,000 and, for every other token, of -10,000",
    LOW: ", with logits of -100,000 for every other token",
    APART: ", where one rank's logits are far above all others",
    SILENT: ", where all of one rank's logits are -inf, and some tokens' about -100,000",
}
KEPT = 9  # elements per token that may be kept in addition to a shard of logits
SAYS, TWO_SAYS = Page(__file__, "looks"), Page(__file__, "two_collectives")
Ideas = Callable[[Case], Iterable[Idea]]
Cases = Sequence[tuple[list[int], Mapping]]  # ranks, and fields of a plan
SIZES = (19, 23, 25, 29, 31)  # of a vocabulary: no two shards are equal
WIDER = 210  # additional entries that make a shard far wider than a few elements per token


class Trial(NamedTuple):
    reports: list[dict]
    case: Case
    when: str

    def right(self, which: int) -> list[Tensor]:
        """Return each rank's right result in the first step: its loss (0) or its gradient (1)."""
        return [self.of(rank, 0)[which] for rank in range(self.case.n)]

    def of(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        loss, gradient = self.case.steps[step]
        return loss, gradient[:, slice(*self.case.spans[rank])]

    def refuse(self, looks: Mapping[str, Look], says: Words = SAYS, **about: object) -> None:
        says.refuse_each(self.reports, looks, when=self.when, **about)

    def budget(self, numbers: int) -> float:
        """Return the bytes of an all-reduce of `numbers` elements per token."""
        return numbers * forms.all_reduce(self.case.n, self.case.plan.tokens * ITEM)


def tried(answer: Answer, judge: Judge, cases: Cases, extras: tuple | None) -> Iterable[Trial]:
    """Try the answer on its cases, each with a different size. `extras` are plan fields that it
    also receives, or None if its losses have an autograd history."""
    judge.take(answer, trial.__name__)
    seed = looking.fresh_seed()
    for number, (members, fields) in enumerate(cases):
        words = SIZES[(seed + number) % len(SIZES)] + WIDER * (extras is None)
        own = {"more": 0, "mean": extras is not None, **fields}
        plan = Plan(seed, TOKENS[number % 2], words, words + own.pop("more"), **own)
        also = f", with the padding's logits about {plan.padding:,.0f}" if plan.padding else ""
        if plan.ignore is not None:
            also += f", with ignore_index={plan.ignore}"
            also += {"some": "", "all": " for all tokens"}.get(plan.ignored, " for all but one")
        if extras and "smoothing" in extras:
            also += f", with ε = {plan.smoothing:g}"
        when, case = f"{on(members)}{WHERE[plan.kind]}{also}", Case(plan, len(members))
        how = {"members": members, "when": when, "empty": case.without_entries}
        yield Trial(judge.trial(answer, trial.run, plan, extras, **how), case, when)


def judged(
    cases: Cases, extras: tuple, numbers: int, losses: Ideas, gradients: Ideas
) -> Callable[[Answer, Judge], None]:
    """Return the judge of a manual loss and gradient that may sum `numbers` elements per token."""
    looks = Looks(
        returned=look_at_pair,
        unchanged=look_at_inputs,
        value=lambda one: look_at_loss(one, losses),
        gradients=lambda one: look_at_gradient(one, gradients),
        traffic=lambda one: look_at_traffic(one, numbers),
        memory=look_at_largest,
        later_steps=look_at_steps,
    )
    return lambda answer, judge: looks.at(answer, tried(answer, judge, cases, extras))


def look_at_pair(one: Trial) -> None:
    """Raise a Finding if the pair is not one number and a gradient shaped like the logits."""
    refuse_none(one.reports, one.when, "a loss and a gradient")
    every = [one.case.plan.tokens, one.case.plan.rows]
    looks = {
        "not a pair": lambda r: not r["pair"],
        "no single loss": lambda r: r["loss"] is None,
        "gradient of all entries": lambda r: r["gradient"] is None and r["shape"] == every,
        "wrong shape": lambda r: r["gradient"] is None,
    }
    one.refuse(looks)


def look_at_inputs(one: Trial) -> None:
    looking.refuse_changed(one, "the caller's logits or targets")


def look_at_loss(one: Trial, ideas: Ideas) -> None:
    """Raise a Finding if some rank's loss differs from the loss of one process."""
    found, right = [report["loss"] for report in one.reports], one.right(0)
    if all_near(found, right) or all(
        report.get("narrow") and torch.equal(report["loss"].float(), loss.float())
        for report, loss in zip(one.reports, right, strict=True)  # float32 at the end is right too
    ):
        return
    _look_for_ideas(one, found, right, ideas, "loss")
    both = ""
    if right[0].dim() == 0:  # one number, not one for each token
        both = f": expected {float(right[0]):.6g}, but got {float(found[0]):.6g}"
    disagree = any(not alike(loss, found[0]) for loss in found)
    SAYS.refuse({"ranks disagree": disagree, "wrong loss": True}, when=one.when, both=both)


def look_at_gradient(one: Trial, ideas: Ideas) -> None:
    found, right = [report["gradient"] for report in one.reports], one.right(1)
    if not all_near(found, right):
        _look_for_ideas(one, found, right, ideas, "gradient")
        raise SAYS("wrong gradient", when=one.when)


def _look_for_ideas(one: Trial, found: list, right: list, ideas: Ideas, what: str) -> None:
    """Raise a Finding for an idea, for non-finite values, or for a general mistake."""
    head = "The loss is correct, but its gradient is wrong. " if what == "gradient" else ""
    looking.refuse_idea(found, ideas(one.case), one.when, head)
    if not all(bool(values.isfinite().all()) for values in found):
        _refuse_not_finite(one)
    sizes = {"tokens": one.case.plan.tokens, "entries": one.case.plan.words}
    looking.refuse_general(found, right, one.when, sizes=sizes, what=what)


def _refuse_not_finite(one: Trial) -> None:
    plan, empty = one.case.plan, one.case.without_entries
    gradients = [report["gradient"] for report in one.reports]
    fine = all(g is not None and g.isfinite().all() for g in gradients)
    reasons = {
        "zero times infinity #3": plan.ignored == "all" and plan.kind == SILENT,
        "nothing over nothing": plan.ignored == "all",
        "zero times infinity #1": plan.padding > 0,
        "rank without real entries": empty,
        "overflow": plan.kind in (FAR, LOW, APART),
        "zero times infinity #2": plan.kind == SILENT and fine,
        "no largest logit": plan.kind == SILENT,
        "not finite": True,
    }
    SAYS.refuse(reasons, when=one.when, rank=empty[0] if empty else 0)


def look_at_traffic(one: Trial, numbers: int) -> None:
    """Check that only `numbers` elements per token are summed, and no logits."""
    fair, said = one.budget(numbers), {3: "three", 4: "four"}[numbers]
    refuse_logits_on_the_way(one, fair)
    one.refuse({"over budget": lambda r: r["bytes"] > fair}, fair=fair, numbers=said)


def refuse_logits_on_the_way(one: Trial, fair: float) -> None:
    """Raise a Finding if the traffic exceeds `fair` and includes data as large as rank's logits."""

    def met(report: dict) -> bool:
        own = report["wanted"][0] * report["wanted"][1]
        return report["bytes"] > fair and any(own and many >= own for many in report["sent"])

    one.refuse({"logits on the way": met})


def look_at_largest(one: Trial) -> None:
    """Check that no tensor is larger than the largest shard plus a column or two."""
    column, (a, z) = one.case.plan.tokens * ITEM, one.case.spans[0]
    shard, most = column * (z - a), column * (z - a + 2)
    one.refuse({"not sharded": lambda r: r["largest"] > most}, shard=shard)


def look_at_steps(one: Trial) -> None:
    """Raise a Finding if a later step differs from the step of one process."""
    for rank, report in enumerate(one.reports):
        for step, mine in enumerate(report["steps"]):
            loss, gradient = one.of(rank, step)
            loss = loss.float().double() if mine.get("narrow") else loss
            if not (near(mine["loss"], loss) and near(mine["gradient"], gradient)):
                raise looking.another_step(one, rank, step)
    one.refuse({"one buffer for two results": lambda r: r["reused"]})


def judged_two(cases: Cases, losses: Ideas, gradients: Ideas) -> Callable[[Answer, Judge], None]:
    """Return the judge of losses with an autograd history, on shards wider than a few elements."""
    looks = Looks(
        returned=_look_at_losses,
        unchanged=look_at_inputs,
        value=lambda one: look_at_loss(one, losses),
        gradients=lambda one: _look_at_ways_back(one, gradients),
        traffic=_look_at_messages,
        memory=_look_at_memory,
        later_steps=look_at_steps,
    )
    return lambda answer, judge: looks.at(answer, tried(answer, judge, cases, None))


def _look_at_losses(one: Trial) -> None:
    refuse_none(one.reports, one.when, "one loss for each token")
    wanted = [one.case.plan.tokens]
    one.refuse({"wrong shape": lambda r: r["loss"] is None}, TWO_SAYS, wanted=wanted)


def _look_at_ways_back(one: Trial, gradients: Ideas) -> None:
    """Check that the backward pass exists, is right, and can run twice."""
    one.refuse({"no gradient": lambda r: r["gradient"] is None}, TWO_SAYS)
    look_at_gradient(one, gradients)
    looks = {
        "second backward": lambda r: not near(r["again"], r["gradient"]),
        "second call in between": lambda r: not near(r["later"], r["gradient"]),
    }
    one.refuse(looks, TWO_SAYS)


def _look_at_messages(one: Trial) -> None:
    fair, two = one.budget(3), {"all_reduce": 2}
    one.refuse({"a message in the backward": lambda r: r["back"]}, TWO_SAYS)
    refuse_logits_on_the_way(one, fair)
    looks = {
        "three messages": lambda r: r["ops"] == {"all_reduce": 3} and r["bytes"] == fair,
        "gathered, then reduced": lambda r: "all_gather" in r["ops"],
        "more than three numbers": lambda r: r["ops"] == two and r["bytes"] != fair,
        "over budget": lambda r: r["ops"] != two,
    }
    told = [{**report, "told": looking.counted(report["ops"])} for report in one.reports]
    TWO_SAYS.refuse_each(told, looks, when=one.when, fair=fair)


def _look_at_memory(one: Trial) -> None:
    tokens, (a, z) = one.case.plan.tokens, one.case.spans[0]
    shard, most = tokens * (z - a) * ITEM, tokens * (z - a + KEPT) * ITEM
    one.refuse({"keeps too much": lambda r: r["held"] > most}, TWO_SAYS, shard=shard)
    look_at_largest(one)
