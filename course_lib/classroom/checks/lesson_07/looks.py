"""How each answer of lesson 07 is looked at: shape, loss, gradient, traffic, memory, later steps.

A wrong loss or gradient is held against what each wrong idea gives on every rank; the ideas are
computed from the trial's own numbers, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_07.case import Case, Plan
from course_lib.classroom.crew import START_LIMIT
from course_lib.ledger import forms

TOLERANCE, ITEM = 1e-10, 8  # float64
WHERE = {
    "plain": "",
    "far": ", with logits of about 10,000",
    "apart": ", where one rank's logits are far above all others'",
    "silent": ", where all of one rank's logits are -inf",
}
_LOAD = (
    'from course_lib.classroom.checks import bench; bench.part("lesson_07.trial").first_use(); '
    "bench.watched(lambda: 0)"
)


class Idea(NamedTuple):
    """A wrong idea, and what it gives on each rank."""

    name: str
    text: str
    found: list[Tensor]


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


def take(answer: Answer, judge: Judge) -> None:
    """Give the answer to fresh ranks that have loaded what the check runs on them."""
    judge.ready()
    judge.everywhere(lambda rank: _LOAD, START_LIMIT)
    judge.take(answer)


def tried(
    answer: Answer, judge: Judge, members: list[int], plan: Plan, extras: tuple | None
) -> Trial:
    """The answer on a group; `extras` are what it gets besides, None for one with a history."""
    said = "" if plan.kind == "plain" else WHERE[plan.kind]
    if plan.ignored == "all":
        said = ", where all tokens are ignored"
    elif plan.ignore is not None:
        said = f", with ignore_index={plan.ignore}"
    when = f"{on(members)}{said}"
    part = 'bench.part("lesson_07.trial")'
    made = f'bench.part("lesson_07.case").{plan!r}'
    middle = "" if extras is None else f", {extras!r}"
    which = "with_history" if extras is None else "by_hand"
    call = f"{part}.{which}({answer.name}, {made}{middle}, __trial__)"
    return Trial(judge.trial(answer, call, members, when), Case(plan, len(members)), when)


def near(a: Tensor | None, b: Tensor) -> bool:
    """Equal to rounding; a NaN is like a NaN, and an infinity like itself."""
    if a is None or a.shape != b.shape:
        return False
    return torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def look_at_pair(one: Trial) -> None:
    """Refuse what is no loss and gradient, and changed inputs."""
    refuse_none(one.reports, one.when, "a loss and a gradient")
    for rank, report in enumerate(one.reports):
        wanted = [one.case.plan.tokens, one.case.spans[rank][1] - one.case.spans[rank][0]]
        if report["parts"] is None:
            raise Finding(
                "not a pair",
                f"Rank {rank} got a {report['kind']} back {one.when}; wanted is a pair: the loss, "
                "one number, and the gradient of this rank's logits.",
            )
        if report["loss"] is None:
            raise Finding(
                "no single loss",
                f"The first of the pair on rank {rank} is not one number {one.when}. The loss is "
                "the mean over the tokens, the same on every rank.",
            )
        if report["gradient"] is None:
            whole = [one.case.plan.tokens, one.case.plan.rows]
            if report["shape"] == whole:
                raise Finding(
                    "gradient of all words",
                    f"Rank {rank} got the gradient of all logits back, {whole}, {one.when}; "
                    f"wanted is that of its own, {wanted}. No rank has a use for the others'.",
                )
            raise Finding(
                "wrong shape",
                f"The gradient on rank {rank} has shape {report['shape']} and dtype "
                f"{report['dtype']} {one.when}; wanted is {wanted} and float64, like the logits.",
            )
        look_at_inputs(one, rank, report)


def look_at_inputs(one: Trial, rank: int, report: dict) -> None:
    if report["changed"]:
        raise Finding(
            "input changed",
            f"Your function changed the caller's logits or targets on rank {rank}, {one.when}. The "
            "caller may still need them: work out of place.",
        )


Ideas = Callable[[Case], Iterable[Idea]]


def look_at_loss(one: Trial, ideas: Ideas) -> None:
    """A Finding where some rank's loss is not that of one process."""
    found = [report["loss"] for report in one.reports]
    right = [loss for loss, _ in one.right]
    if all(map(near, found, right)):
        return
    _refuse_known(found, one, ideas, "")
    if not all(bool(torch.isfinite(loss).all()) for loss in found):
        _refuse_not_finite(found, one)
    _refuse_rounded(found, right, one, "loss")
    spread = [rank for rank, loss in enumerate(found) if not near(loss, found[0])]
    if spread:
        raise Finding(
            "ranks disagree",
            f"The ranks have different losses {one.when}. Every rank needs the whole one.",
        )
    raise Finding("wrong loss", f"The loss is not that of one process {one.when}.")


def look_at_gradient(one: Trial, ideas: Ideas) -> None:
    found = [report["gradient"] for report in one.reports]
    right = [gradient for _, gradient in one.right]
    if all(map(near, found, right)):
        return
    _refuse_known(found, one, ideas, "The loss is right, its gradient is not. ")
    if not all(bool(torch.isfinite(gradient).all()) for gradient in found):
        _refuse_not_finite(found, one)
    _refuse_rounded(found, right, one, "gradient")
    raise Finding(
        "wrong gradient",
        f"The loss is right, and its gradient is not that of one process {one.when}. Of each "
        "logit it is what the softmax gives it, less what the label wants.",
    )


def _refuse_known(found: list[Tensor], one: Trial, ideas: Ideas, head: str) -> None:
    for idea in ideas(one.case):
        if all(map(near, found, idea.found)):
            raise Finding(idea.name, f"{head}{idea.text} ({one.when}.)")


def _refuse_rounded(found: list[Tensor], right: list[Tensor], one: Trial, what: str) -> None:
    if all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(found, right, strict=True)):
        raise Finding(
            "rounded on the way",
            f"The {what} is right to six digits or more and not to ten, {one.when}: something on "
            "the way is in float32. A bool times a number is, for example.",
        )


def _refuse_not_finite(found: list[Tensor], one: Trial) -> None:
    kind = one.case.plan.kind
    if one.case.plan.ignored == "all":
        raise Finding(
            "nothing over nothing",
            f"With every token ignored there is a NaN {one.when}: a mean over no token. It is "
            "defined as 0 here, with a gradient of zeros, so that training goes on.",
        )
    if kind == "far" or kind == "apart":
        raise Finding(
            "overflow",
            f"There is an infinity or a NaN {one.when}. An exponential is taken of something "
            "that was not made small first, or a sum of them has become 0 before its logarithm: "
            "what is taken off has to be the largest logit of all ranks.",
        )
    if kind == "silent":
        raise Finding(
            "no largest logit",
            f"There is a NaN {one.when}: there the rank's largest logit is -inf too, and "
            "-inf - (-inf) is no number. Such a rank adds nothing to the sum.",
        )
    empty = [r for r, (a, _) in enumerate(one.case.spans) if a >= one.case.plan.words]
    if empty:
        raise Finding(
            "rank without a word",
            f"There is a NaN, or an infinity, {one.when}: all rows of rank {empty[0]} are padding "
            "there. A rank without a real word still takes part, with nothing to add.",
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
            f"({wide[0]}), {report['bytes']} bytes in all {one.when}: with it grows v, the "
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
                "there is as wide as the whole vocabulary: a cut that saves no memory.",
            )


def look_at_steps(one: Trial) -> None:
    """A Finding where a later step goes another way than one process does."""
    for rank, report in enumerate(one.reports):
        for step, mine in enumerate(report["steps"]):
            wanted = one.of(rank, step)
            if not all(map(near, (mine["loss"], mine["gradient"]), wanted)):
                raise Finding(
                    "another second step",
                    f"Step {step + 1} of training is not that of one process on rank {rank} "
                    f"{one.when}, and step 1 is. Does your function keep something between calls?",
                )
