"""`token_mean_step` of lesson 08: one mean over all tokens, however they are spread over the ranks.

Loss and gradients are held against one process that has all batches, and against what known wrong
ideas would give; the ledger says how much was sent for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.classroom.checks import looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_08 import mean_trial
from course_lib.classroom.checks.lesson_08.mean_trial import MICRO
from course_lib.classroom.checks.lesson_08.model import refuse
from course_lib.classroom.checks.looking import ITEM, THREE, TWO
from course_lib.classroom.checks.words import Page
from course_lib.ledger import forms

SLACK = 16  # numbers beside the gradients: sums and counts
VALUES = {  # what is said of a rank's own, of what has no name, and before each idea
    "gradient": (
        "gradients not summed",
        "wrong gradients",
        "The gradient is not that of the mean over all tokens",
    ),
    "loss": ("a rank's own loss", "wrong loss", "The gradients are right and the loss is not"),
}
SAYS = Page("lesson_08/token_mean_step")


def judge_mean(answer: Answer, judge: Judge) -> None:
    """Three steps on three ranks, then on two others; each time one more in float32."""
    judge.take(answer, mean_trial.__name__)
    seed = looking.fresh_seed()
    for members in (THREE, TWO):
        when, last = on(members), len(members) - 1
        reports = judge.trial(
            answer, mean_trial.train, seed, members=members, when=when, empty=[last]
        )
        for k, told in enumerate(zip(*reports, strict=True)):
            where = f"{when}, in step {k + 1}{', with a model in float32' * (k == 3)}"
            _look_at_results(told, where)
            _look_at_values(told, "gradient", where)
            _look_at_values(told, "loss", where)
            _look_at_traffic(told, where)
            _look_at_model(told, where)


def _look_at_results(told: Sequence[dict], where: str) -> None:
    refuse(SAYS, "no gradients", told, lambda one: one["missing"], where=where)
    refuse(SAYS, "rows of others", told, lambda one: one["rows"] > one["own"], where=where)
    refuse(SAYS, "input changed", told, lambda one: one["changed"], where=where)
    refuse(SAYS, "a mean of nothing", told, lambda one: one["nan"], where=where)
    refuse_none(told, where, "the loss")
    refuse(SAYS, "not a number", told, lambda one: one["loss"] is None, where=where)


def _look_at_values(told: Sequence[dict], what: str, where: str) -> None:
    """A Finding where some rank's loss or gradient is not that of one process: by an idea if one
    explains what all ranks have."""
    ideas = [name for name in told[0]["ideas"][what] if all(name in t["ideas"][what] for t in told)]
    if "right" in ideas:
        return
    own, wrong, head = VALUES[what]
    head = f"{head} {where}."
    if "own" in ideas:
        raise SAYS(own, where=where)
    if ideas:
        name, text = SAYS.of(ideas[0], k=MICRO)
        raise Finding(name, f"{head} {text}")
    fine = set.intersection(*(set(one["fine"]) for one in told))
    if what == "gradient" and fine:
        raise SAYS("only some parameters", head=head, fine=" and ".join(sorted(fine)))
    found, right = [one[what] for one in told], [one["wanted"][what] for one in told]
    looking.refuse_general(found, right, where, sizes={"micro-batches": MICRO}, what=what)
    roughly = what == "gradient" and all(one["roughly"] for one in told)
    raise SAYS("rounded on the way" if roughly else wrong, head=head)


def _look_at_model(told: Sequence[dict], where: str) -> None:
    """Nothing but the gradients may have changed in the model, and they stay what they are."""
    refuse(SAYS, "other weights", told, lambda one: one["moved"], where=where)
    refuse(SAYS, "model changed", told, lambda one: one["left"], where=where)
    refuse(SAYS, "one buffer for two results", told, lambda one: one["overwritten"], where=where)


def _look_at_traffic(told: Sequence[dict], where: str) -> None:
    once, beside = (
        forms.all_reduce(len(told), ITEM * many) for many in (told[0]["numbers"], SLACK)
    )
    many = any(one["bytes"] >= 2 * once for one in told)
    entry = "sent for each micro-batch" if many else "too much sent"
    too_much = once + beside
    refuse(SAYS, entry, told, lambda one: one["bytes"] > too_much, where=where, once=once)


MEAN = Exercise(judge=judge_mean, **SAYS.about)
