"""`agreed_step` of lesson 10: unscale, agree, clip, and step or leave it, all ranks alike.

Shards, moments and scales are held against one process after each of six steps, two of which meet
an inf or a NaN on one rank.
"""

from __future__ import annotations

import math
import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_10 import overflow_trial as trial

FEW = 4 * 8  # bytes: a norm, a flag and some more
IDEAS = {
    "held against the square": (
        "a square for a norm",
        "The sum of squares was held against `most`; its root is the norm.",
    ),
    "not unscaled": (
        "not unscaled",
        "It went to the optimizer as large as the loss scale made it.",
    ),
    "not unscaled, not clipped": (
        "not unscaled",
        "It went to the optimizer as large as the loss scale made it.",
    ),
    "not unscaled, clipped by the true norm": (
        "not unscaled",
        "The norm is right, and what went to the optimizer was still scaled.",
    ),
    "clipped before unscaling": (
        "clipped before unscaling",
        "`most` is a length of true gradients. It was held against the norm of the scaled ones, "
        "so nearly every step is clipped, by a factor that moves with the scale.",
    ),
    "unscaled twice": ("unscaled twice", "It was divided by the scale once too often."),
    "not clipped": ("not clipped", "It is longer than `most` and was not shortened."),
    "its own norm": (
        "its own norm",
        "Each rank clipped by the norm of its own shard, so every shard is shortened by another "
        "factor. The norm is that of all shards together.",
    ),
    "always to most": (
        "made longer",
        "A gradient shorter than `most` was made longer. Clipping only shortens.",
    ),
    "squared": (
        "a square for a norm",
        "It was divided by the sum of squares, and not by its root.",
    ),
    "norms added": (
        "norms added up",
        "The norms of the shards were added. What adds up is their squares.",
    ),
    "the largest norm": (
        "norms added up",
        "It was clipped by the largest norm of a shard. The squares of all shards' norms add up.",
    ),
    "a mean of squares": (
        "a mean of squares",
        "The sum of squares was divided by the number of ranks. The shards are different elements "
        "of one gradient: their squares are added.",
    ),
    "no 1e-6": ("1e-6 left out", "The norm is small here, and 1e-6 is to be added to it."),
}


def judge_overflow(answer: Answer, judge: Judge) -> None:
    """Six steps on three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, trial.__name__)
    seed = int.from_bytes(os.urandom(3), "big")
    for members in ([0, 1, 2], [1, 2]):
        when = on(members)
        empty = [1] if len(members) == 3 else []
        how = {"members": members, "when": when, "empty": empty}
        reports = judge.trial(answer, trial.train, seed, **how)
        for step, told in enumerate(zip(*reports, strict=True)):
            where = f"{when}, in step {step + 1}"
            if len(members) == 2 and told[0]["step"] == "good" and not _good(told):
                refuse_world_numbers(answer, where)
            look_at_results(told, where)
            if told[0]["step"] == "good":
                look_at_a_step(told, where)
            else:
                look_at_a_skip(told, where)
            look_at_scales(told, where)
            look_at_the_rest(told, where)


def look_at_results(told: list[dict], where: str) -> None:
    refuse_none(told, where, "whether it stepped, and the next scale")
    for rank, one in enumerate(told):
        if not one["pair"] or one["stepped"] is None or one["scale"] is None:
            raise Finding(
                "not a pair",
                f"Rank {rank} got a {one['kind']} back {where}; expected are two things: whether "
                "it stepped, True or False, and the scale of the next step, a number.",
            )


def look_at_a_skip(told: list[dict], where: str) -> None:
    """A step that one rank has reason to leave out."""
    what = "an inf" if told[0]["step"] == "inf" else "a NaN"
    who = told[0]["culprit"]
    head = f"Rank {who} has {what} in its shard {where}."
    stepped = [rank for rank, one in enumerate(told) if one["stepped"] or one["weights moved"]]
    if who in stepped:
        name = "NaN let through" if what == "a NaN" else "stepped all the same"
        more = " A NaN is neither inf nor larger than anything." if what == "a NaN" else ""
        raise Finding(name, f"{head} It made the step all the same.{more}")
    if stepped:
        raise Finding(
            "decided alone",
            f"{head} It left the step out, and rank {stepped[0]} made it: the model is now made of "
            "shards of different steps. All ranks have to know what one has seen.",
        )
    for rank, one in enumerate(told):
        if one["moments moved"]:
            raise Finding(
                "a step of zeros",
                f"{head} No weight changed, but the optimizer's moments on rank {rank} did: to "
                "step with zeros is a step. Leave the optimizer alone.",
            )


def look_at_a_step(told: list[dict], where: str) -> None:
    """A step that is to be made, by the right factor."""
    for rank, one in enumerate(told):
        if not one["stepped"]:
            raise Finding(
                "left out without reason",
                f"All gradients are finite {where}, and rank {rank} says that it left the step "
                "out.",
            )
    if _good(told):
        return
    found = [one for one in told if one["factor"] is not None]
    for idea, (name, text) in IDEAS.items():
        if all(_close(one["factor"], one["factors"][idea]) for one in found):
            raise Finding(name, f"The gradient is not the one to step with {where}. {text}")
    if all(_close(one["factor"], 0.0) for one in found):
        raise Finding("no step", f"The weights did not move by this gradient {where}.")
    if all(one["rounded"] and one["fits"] for one in found):
        raise Finding(
            "rounded on the way",
            f"The gradients went through a narrower type on the way {where}. Keep their dtype.",
        )
    raise Finding(
        "wrong factor",
        f"The gradient was multiplied by something else than 1/scale and, where it is longer than "
        f"most, by most / (norm + 1e-6) {where}.",
    )


def look_at_scales(told: list[dict], where: str) -> None:
    """Halved on all ranks by an overflow, else left."""
    want = told[0]["was"] / (1 if told[0]["step"] == "good" else 2)
    off = [rank for rank, one in enumerate(told) if one["scale"] != want]
    if not off:
        return
    if len({one["scale"] for one in told}) > 1:
        raise Finding(
            "ranks with different scales",
            f"The ranks do not return the same scale {where}: their next losses would be scaled "
            "differently, and their gradients added up all the same.",
        )
    if told[0]["step"] == "good":
        raise Finding("another scale", f"The step went well {where}, and the scale was changed.")
    raise Finding(
        "scale not halved",
        f"The step was left out {where}, and the next scale is not half of this one: the next "
        "step will overflow as well.",
    )


def look_at_the_rest(told: list[dict], where: str) -> None:
    n = len(told)
    for rank, one in enumerate(told):
        if one["left"]:
            raise Finding(
                "gradients left",
                f"{one['left']} parts on rank {rank} still have a gradient {where}. The next "
                "micro-batch would be added to it; after an overflow, that is an inf for ever.",
            )
        if one["changed"]:
            raise Finding("input changed", f"Your function changed the list `parts` {where}.")
        allowed = 2 * (n - 1) / n * FEW
        if one["bytes"] > allowed:
            raise Finding(
                "too much sent",
                f"All is right, and rank {rank} sent {one['bytes']} bytes for it {where}. Whether "
                "a rank has overflowed, and how long the whole gradient is, are two numbers; no "
                "rank needs another one's shard.",
            )


def _good(told: list[dict]) -> bool:
    return all(one["good"] for one in told)


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)


OVERFLOW = Exercise(
    name="agreed_step",
    title="An overflow on one rank",
    points=4,
    judge=judge_overflow,
    when_right=(
        "On three ranks, one of them with an empty shard, and on two: an inf and a NaN on one rank "
        "made all leave the step out, with nothing changed but the scale; the other steps were "
        "those of one process, unscaled first and then clipped by the norm of all shards; and a "
        "few numbers were sent."
    ),
    hints=(
        "Before any rank touches a weight, all ranks have to know two things. Which? Both follow "
        "from a sum over the ranks.",
        "A sum of squares that contains inf or NaN is not finite, whatever is added to it. "
        "`math.isfinite` and `torch.isfinite` refuse both.",
        "The norm of what is scaled is scale times the norm. Which of the two is `most` meant for?",
        "Left out means: the optimizer is not called at all. Its moments stay, and so does its "
        "count of steps.",
    ),
)
