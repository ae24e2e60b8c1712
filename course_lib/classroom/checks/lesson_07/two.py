"""`two_collectives` of lesson 07: losses with a history, for two small all-reduces and no more.

Held against one process in values, in gradients taken twice, in three steps; and against a budget
of messages, of bytes, and of what stays alive between forward and backward.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.judge import Judge, refuse_none
from course_lib.classroom.checks.lesson_07 import ideas, looks, trial
from course_lib.classroom.checks.lesson_07.by_hand import TOKENS, exercise, fresh
from course_lib.classroom.checks.lesson_07.case import APART, FAR, PLAIN, SILENT, Plan
from course_lib.classroom.checks.lesson_07.looks import Trial
from course_lib.classroom.checks.looking import ITEM, THREE, TWO, Looks, came_back, counted, near
from course_lib.ledger import forms

KEPT = 9  # numbers a token that may be kept beside a shard of logits


def judge_two(answer: Answer, judge: Judge) -> None:
    """Try two_collectives; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed, v = fresh()
    v *= 3  # wide enough that a shard is far more than a few numbers a token
    cases = [(THREE, PLAIN), (TWO, PLAIN), (THREE, FAR), (TWO, APART), (THREE, SILENT)]
    trials = (
        looks.tried(answer, judge, members, Plan(seed, TOKENS, v, v, kind, mean=False), None)
        for members, kind in cases
    )
    LOOKS.at(answer, trials)


def _look_at_returned(one: Trial) -> None:
    refuse_none(one.reports, one.when, "one loss for each token")


def _look_at_shape(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        if report["loss"] is None:
            raise Finding(
                "wrong shape",
                f"Rank {rank} got {came_back(report)} back {one.when}; wanted is one loss for each "
                f"token, a tensor of shape {[one.case.plan.tokens]} and dtype float64.",
            )


def _look_at_gradients(one: Trial) -> None:
    """There is a way back, it is right, and it can be gone twice."""
    for rank, report in enumerate(one.reports):
        if report["gradient"] is None:
            raise Finding(
                "no way back",
                f"The losses are right, and nothing leads back from them to the logits on rank "
                f"{rank}, {one.when}. Was something detached? A Function of your own has a "
                "backward.",
            )
    looks.look_at_gradient(one, ideas.of_the_gradient)
    for rank, report in enumerate(one.reports):
        if not near(report["again"], report["gradient"]):
            raise Finding(
                "second backward",
                f"A second backward (retain_graph=True) gives another gradient on rank "
                f"{rank}, {one.when}, or an error: the first backward has changed what the "
                "forward had kept.",
            )
        if not near(report["later"], report["gradient"]):
            raise Finding(
                "another use in between",
                f"Your function was called again before the backward of its first losses, and "
                f"their gradient is another one then on rank {rank}, {one.when}, or an error. What "
                "a forward keeps belongs to that one use: in `ctx`, not in a class or a global.",
            )


def _look_at_messages(one: Trial) -> None:
    n, tokens = one.case.n, one.case.plan.tokens
    fair = 3 * forms.all_reduce(n, tokens * ITEM)
    for rank, report in enumerate(one.reports):
        if report["back"]:
            raise Finding(
                "a message in the backward",
                f"Values and gradients are right, and rank {rank} sends {counted(report['back'])} "
                f"in the backward, {one.when}. What it needs is known on every rank by then.",
            )
        if report["ops"] == {"all_reduce": 2} and report["bytes"] == fair:
            continue
        looks.refuse_logits_on_the_way(one, rank, report)
        head = (
            f"The values are right. Rank {rank} sends {counted(report['ops'])} and "
            f"{report['bytes']} bytes {one.when}; the budget is 2 all_reduce and {fair:g} bytes. "
        )
        raise Finding(*_idea(report, head, fair))


def _idea(report: dict, head: str, fair: float) -> tuple[str, str]:
    ops = report["ops"]
    if ops == {"all_reduce": 3} and report["bytes"] == fair:
        return (
            "three messages",
            f"{head}No byte too many, one message. What keeps the sum of exponentials from "
            "travelling with the target's logit, and can a rank sum before it knows the maximum?",
        )
    if "all_gather" in ops:
        return (
            "gathered, then reduced",
            f"{head}Each rank gets every other rank's numbers and makes the sum itself: more ranks "
            "are more bytes. An all-reduce sums on the way.",
        )
    if ops == {"all_reduce": 2}:
        return (
            "more than three numbers",
            f"{head}Something travels that no loss needs. It is three numbers a token.",
        )
    return "over budget", f"{head}Which of these messages does no loss need?"


def _look_at_memory(one: Trial) -> None:
    plan, (a, z) = one.case.plan, one.case.spans[0]
    fair = plan.tokens * (z - a + KEPT) * ITEM
    for rank, report in enumerate(one.reports):
        if report["held"] > fair:
            raise Finding(
                "keeps too much",
                f"The values are right, and from forward to backward rank {rank} keeps "
                f"{report['held']} bytes {one.when}, beside the caller's logits. A shard of these "
                f"has {plan.tokens * (z - a) * ITEM}: one tensor of that size may stay, and none "
                "has to.",
            )
    looks.look_at_largest(one)


LOOKS = Looks(
    returned=_look_at_returned,
    shape=_look_at_shape,
    unchanged=looks.look_at_inputs,
    value=lambda one: looks.look_at_loss(one, ideas.of_the_loss),
    gradients=_look_at_gradients,
    traffic=_look_at_messages,
    memory=_look_at_memory,
    later_steps=looks.look_at_steps,
)
TWO_COLLECTIVES = exercise(
    "two_collectives",
    "From three collectives to two",
    4,
    judge_two,
    when_right=(
        "Losses, gradients, a second backward and three steps of training are those of one "
        "process, on two and three ranks: with ranks far apart, and one whose logits are all -inf. "
        "Two all-reduces of three numbers a token in all, none backward, and no more than a shard "
        "kept."
    ),
    hints=(
        "Let each rank sum relative to its own largest logit, before anything is sent. By which "
        "factor does that sum change when another logit is subtracted?",
        "The maximum is one message. After it, two numbers a token wait for a sum: `torch.stack`.",
        "A rank whose logits are all -inf has -inf for its largest. Which difference is not a "
        "number then, and what should such a rank's sum be?",
        "For the backward: which tensors of the forward lead from the logits to the softmax, and "
        "how many numbers are they?",
    ),
)
