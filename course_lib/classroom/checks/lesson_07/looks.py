"""How each answer of lesson 07 is looked at: shape, loss, gradient, traffic, memory, later steps.

A wrong loss or gradient is held against what each wrong idea gives on every rank; the ideas are
computed from the trial's own numbers, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks import looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_07 import trial
from course_lib.classroom.checks.lesson_07.case import Case, Plan
from course_lib.classroom.checks.looking import (
    ITEM,
    Idea,
    Looks,
    all_near,
    another_step,
    near,
    refuse_changed,
    refuse_idea,
)
from course_lib.ledger import forms

WHERE = {
    "plain": "",
    "far": ", with logits of 10,000 and, every other token, of -10,000",
    "low": ", with logits of -100,000 for every other token",
    "apart": ", where one rank's logits are far above all others'",
    "silent": ", where all of one rank's logits are -inf, and some tokens' about -100,000",
}


class Trial(NamedTuple):
    reports: list[dict]
    case: Case
    when: str

    @property
    def right(self) -> list[list[Tensor]]:
        """For each rank, its loss and gradient at the first step."""
        return [self.of(rank, 0) for rank in range(self.case.n)]

    def of(self, rank: int, step: int) -> list[Tensor]:
        loss, gradient = self.case.steps[step]
        return [loss, gradient[:, slice(*self.case.spans[rank])]]


def tried(
    answer: Answer,
    judge: Judge,
    members: list[int],
    plan: Plan,
    extras: tuple | None,
    also: str = "",
) -> Trial:
    """The answer on a group; `extras` are what it gets besides, None for one with a history; `also`
    is said of the trial after the kind of its logits."""
    said = "" if plan.kind == "plain" else WHERE[plan.kind]
    if plan.padding:
        said += f", with the padding's logits about {plan.padding:,.0f}"
    if plan.ignored == "all":
        said = ", where all tokens are ignored"
    elif plan.ignore is not None:
        said += f", with ignore_index={plan.ignore}"
    when = f"{on(members)}{said}{also}"
    how, more = (trial.with_history, ()) if extras is None else (trial.by_hand, (extras,))
    case = Case(plan, len(members))
    reports = judge.trial(
        answer, how, plan, *more, members=members, when=when, empty=case.without_entries
    )
    return Trial(reports, case, when)


def look_at_pair(one: Trial) -> None:
    """A Finding where a rank did not get a pair back."""
    refuse_none(one.reports, one.when, "a loss and a gradient")
    for rank, report in enumerate(one.reports):
        if report["parts"] is None:
            raise Finding(
                "not a pair",
                f"Rank {rank} got a {report['kind']} back {one.when}; wanted is a pair: the loss, "
                "one number, and the gradient of this rank's logits.",
            )


def look_at_shape(one: Trial) -> None:
    """A Finding where the pair is not one number and a gradient shaped like the logits."""
    plan = one.case.plan
    for rank, (report, (a, z)) in enumerate(zip(one.reports, one.case.spans, strict=True)):
        wanted, every = [plan.tokens, z - a], [plan.tokens, plan.rows]
        if report["loss"] is None:
            raise Finding(
                "no single loss",
                f"The first of the pair on rank {rank} is not one number {one.when}. The loss is "
                "the mean over the tokens, the same on every rank.",
            )
        if report["gradient"] is None and report["shape"] == every:
            raise Finding(
                "gradient of all words",
                f"Rank {rank} got the gradient of all logits back, {every}, {one.when}; wanted is "
                f"that of its own, {wanted}. No rank has a use for the others'.",
            )
        if report["gradient"] is None:
            raise Finding(
                "wrong shape",
                f"The gradient on rank {rank} has shape {report['shape']} and dtype "
                f"{report['dtype']} {one.when}; wanted is {wanted} and float64, like the logits.",
            )


def look_at_inputs(one: Trial) -> None:
    refuse_changed(one, "the caller's logits or targets")


Ideas = Callable[[Case], Iterable[Idea]]


def look_at_loss(one: Trial, ideas: Ideas) -> None:
    """A Finding where some rank's loss is not that of one process."""
    found = [report["loss"] for report in one.reports]
    right = [loss for loss, _ in one.right]
    if _only_logged(one, right) or all_near(found, right):
        return
    refuse_idea(found, ideas(one.case), one.when)
    if not all(bool(torch.isfinite(loss).all()) for loss in found):
        _refuse_not_finite(found, one)
    looking.refuse_general(found, right, one.when, sizes=one.case.sizes, what="loss")
    spread = [rank for rank, loss in enumerate(found) if not near(loss, found[0])]
    if spread:
        raise Finding(
            "ranks disagree",
            f"The ranks have different losses {one.when}. Every rank needs the loss over all "
            "entries.",
        )
    rank = next(r for r in range(one.case.n) if not near(found[r], right[r]))
    both = ""
    if right[rank].dim() == 0:  # one number, not one for each token
        yours, wanted = float(found[rank]), float(right[rank])
        both = f": rank {rank} has {yours:.6g}, wanted is {wanted:.6g}"
    raise Finding("wrong loss", f"The loss is not that of one process {one.when}{both}.")


def _only_logged(one: Trial, right: list[Tensor]) -> bool:
    """Whether the losses are right and were made float32 at the very end, as for a log."""
    narrow = all(report.get("narrow") for report in one.reports)
    return narrow and all(
        torch.equal(report["loss"].float(), loss.float())
        for report, loss in zip(one.reports, right, strict=True)
    )


def look_at_gradient(one: Trial, ideas: Ideas) -> None:
    found = [report["gradient"] for report in one.reports]
    right = [gradient for _, gradient in one.right]
    if all_near(found, right):
        return
    head = "The loss is right, its gradient is not. "
    refuse_idea(found, ideas(one.case), one.when, head)
    if not all(bool(torch.isfinite(gradient).all()) for gradient in found):
        _refuse_not_finite(found, one)
    looking.refuse_general(found, right, one.when, sizes=one.case.sizes, what="gradient")
    raise Finding(
        "wrong gradient",
        f"The loss is right, and its gradient is not that of one process {one.when}. For each "
        "logit it is softmax minus label.",
    )


def _refuse_not_finite(found: list[Tensor], one: Trial) -> None:
    kind = one.case.plan.kind
    if one.case.plan.ignored == "all":
        raise Finding(
            "nothing over nothing",
            f"With every token ignored there is a NaN {one.when}: a mean over no token. It is "
            "defined as 0 here, with a gradient of zeros, so that training goes on.",
        )
    if one.case.plan.padding > 0:
        raise Finding(
            "zero times infinity",
            f"There is a NaN {one.when}. The padding's exponentials are infinite there, and "
            "0 · inf is no number. Choose with torch.where, or fill the logits with -inf before "
            "the exponential; do not multiply by a mask.",
        )
    empty = one.case.without_entries
    if empty:
        raise Finding(
            "rank without a word",
            f"There is a NaN, or an infinity, {one.when}: all rows of rank {empty[0]} are padding "
            "there. A rank without a real entry still takes part, with nothing to add.",
        )
    if kind in ("far", "low", "apart"):
        raise Finding(
            "overflow",
            f"There is an infinity or a NaN {one.when}. An exponential is taken of something "
            "that was not made small first, or a sum of them has become 0 before its logarithm: "
            "what is subtracted has to be the largest logit of all ranks.",
        )
    gradients = [report["gradient"] for report in one.reports]
    if kind == "silent" and all(g is not None and g.isfinite().all() for g in gradients):
        raise Finding(
            "zero times infinity",
            f"The loss is a NaN {one.when}, though the gradient has none: the sum of exponentials "
            "is fine, and the target's logit is not. 0 · (-inf) is no number: choose with "
            "torch.where, do not multiply by a mask.",
        )
    if kind == "silent":
        raise Finding(
            "no largest logit",
            f"There is a NaN or an infinity {one.when}: there the rank's largest logit is -inf "
            "too, and -inf - (-inf) is no number. Such a rank adds nothing to the sum, and no "
            "other number may stand for its largest logit.",
        )
    raise Finding("not finite", f"There is a NaN or an infinity {one.when}.")


def look_at_traffic(one: Trial, numbers: int, words: str) -> None:
    """So many numbers a token may be summed, and no logits."""
    n, plan = one.case.n, one.case.plan
    fair = numbers * forms.all_reduce(n, plan.tokens * ITEM)
    for rank, report in enumerate(one.reports):
        if report["bytes"] <= fair:
            continue
        refuse_logits_on_the_way(one, rank, report)
        raise Finding(
            "over budget",
            f"The values are right. Rank {rank} sends {report['bytes']} bytes {one.when}; the "
            f"budget is {fair:g}, {words} numbers a token. The backward needs no message at all.",
        )


def refuse_logits_on_the_way(one: Trial, rank: int, report: dict) -> None:
    plan, (a, z) = one.case.plan, one.case.spans[rank]
    wide = [op for op, elements in report["sent"] if elements >= plan.tokens * (z - a) > 0]
    if wide:
        raise Finding(
            "logits on the way",
            f"The values are right. Rank {rank} sends something as large as its logits "
            f"({wide[0]}), {report['bytes']} bytes in all {one.when}: it grows with v, the "
            "vocabulary. What a token's loss needs of another rank is a few numbers.",
        )


def look_at_largest(one: Trial) -> None:
    """No tensor may be larger than the largest shard, but for a column or two."""
    plan, (a, z) = one.case.plan, one.case.spans[0]
    fair = plan.tokens * (z - a + 2) * ITEM
    for rank, report in enumerate(one.reports):
        if report["largest"] > fair:
            raise Finding(
                "not sharded",
                f"The values are right, and rank {rank} made a tensor of {report['largest']} bytes "
                f"{one.when}; a shard of the logits has {plan.tokens * (z - a) * ITEM}. Something "
                "there is as wide as the whole vocabulary: a sharding that saves no memory.",
            )


def look_at_steps(one: Trial) -> None:
    """A Finding where a later step goes another way than one process does."""
    for rank, report in enumerate(one.reports):
        for step, mine in enumerate(report["steps"]):
            loss, gradient = one.of(rank, step)
            if mine.get("narrow"):
                loss = loss.float().double()
            if not (near(mine["loss"], loss) and near(mine["gradient"], gradient)):
                raise another_step(one, rank, step)
    if any(report["reused"] for report in one.reports):
        raise Finding(
            "one buffer for two results",
            f"A gradient that your function had returned was another one after its next call, "
            f"{one.when}. The caller may still need it: give each result memory of its own.",
        )


def looks_at_pair(loss: Ideas, gradient: Ideas, budget: tuple[int, str]) -> Looks:
    """The looks at a loss and a gradient that were worked out by hand."""
    return Looks(
        returned=look_at_pair,
        shape=look_at_shape,
        unchanged=look_at_inputs,
        value=lambda one: look_at_loss(one, loss),
        gradients=lambda one: look_at_gradient(one, gradient),
        traffic=lambda one: look_at_traffic(one, *budget),
        memory=look_at_largest,
        later_steps=look_at_steps,
    )
