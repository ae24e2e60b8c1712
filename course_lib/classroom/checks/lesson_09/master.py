"""`master_step` of lesson 09: a step of ZeRO-1 in bfloat16, with a master copy of a rank's shard.

Six steps whose updates are mostly smaller than a rounding: master copy, weights and count are held
against what they should be and what known wrong ideas give; ledger and meter say what it cost.
"""

from __future__ import annotations

import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_09 import master_trial as trial
from course_lib.classroom.checks.lesson_09.master_trial import SLACK

MASTERS = {
    "its own gradient": (
        "gradients not summed",
        "Each rank has updated its shard with its own gradient alone. What it needs is the mean "
        "over the ranks.",
    ),
    "a sum": (
        "a sum for a mean",
        "The gradient is n times too large: it is a sum over the ranks, and a mean is wanted.",
    ),
    "divided twice": ("divided twice", "The gradient is n times too small."),
    "from bf16": (
        "the master copy forgets",
        "The master copy was read off the bf16 values again before the update. Everything too "
        "small for 16 bits was lost with that: the master copy is the only place that keeps it.",
    ),
    "to bf16": (
        "the master copy forgets",
        "The master copy was rounded to bf16 after the update. Everything too small for 16 bits "
        "was lost with that: the master copy is the only place that keeps it.",
    ),
    "added up": (
        "gradients added up",
        "The gradients of earlier steps are still in `master.grad`, and this one was added to "
        "them. A step replaces the gradient.",
    ),
    "another shard": (
        "another shard",
        "The gradient is that of the first rank's shard, on every rank.",
    ),
}
COUNTS = {
    "own": (
        "a rank's own count",
        "It is the count of this rank's shard. Asked for is the count over all elements, on every "
        "rank.",
    ),
    "own, times n": (
        "a rank's own count",
        "It is this rank's count times n. The other ranks have lost other updates.",
    ),
    "unchanged": (
        "what rests is not lost",
        "Every element that has not changed is counted. Some had nothing to lose: their gradient "
        "and momentum are 0, and the master copy has not moved either.",
    ),
    "far": (
        "small moves not counted",
        "A master copy that moved by very little is said not to have moved. `isclose` and "
        "`allclose` have a tolerance: asked is whether it is still *equal*.",
    ),
    "pulled": (
        "the gradient looked at",
        "Elements with a gradient are counted. One without a gradient moves as well, by its "
        "momentum: compare the master weights before and after.",
    ),
    "so far": (
        "kept between calls",
        "It is the count of all steps so far. Asked for is that of this step.",
    ),
    "in bf16": (
        "rounded on the way",
        "It was rounded to bf16, which holds whole numbers up to 256 and then every second one.",
    ),
    "moved": (
        "everything that moved",
        "Every element whose master copy has moved is counted. Lost is an update that the bf16 "
        "value does not show.",
    ),
    "not lost": ("the others counted", "These are the updates that were *not* lost."),
}
COUNTS["unchanged, no padding"] = COUNTS["unchanged"]


def judge_master(answer: Answer, judge: Judge) -> None:
    """Six steps on three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, trial.__name__)
    seed = int.from_bytes(os.urandom(3), "big")
    for members in ([0, 1, 2], [1, 2]):
        when = on(members)
        n = len(members)
        given = (seed, n == 3)  # measured where no earlier call has left anything
        reports = judge.trial(answer, trial.train, *given, members=members, when=when)
        for k in range(len(reports[0]["steps"])):
            told = [report["steps"][k] for report in reports]
            where = f"{when}, in step {k + 1}"
            refuse_none(told, where, "a count")
            if n == 2 and not all("right" in one["master"] and one["flat"] for one in told):
                refuse_world_numbers(answer, where)
            _look_at_masters(told, where)
            _look_at_numbers(told, where)
            _look_at_counts(told, where)
            _look_at_traffic(told, reports[0]["numbers"], where)
        _look_at_memory(reports, when)


def _look_at_masters(told: list[dict], where: str) -> None:
    for rank, one in enumerate(told):
        if not one["knows"]:
            raise Finding(
                "another parameter",
                f"The optimizer of rank {rank} no longer knows `master` {where}. Leave its groups "
                "as they are, and give `master` a gradient.",
            )
    if all("right" in one["master"] for one in told):
        return
    if all(one["still"] for one in told):
        raise Finding("no update", f"The master copies have not moved {where}.")
    for idea, (name, text) in MASTERS.items():
        if all(idea in one["master"] for one in told):
            raise Finding(name, f"The master copies are not what they should be {where}. {text}")
    off = next(rank for rank, one in enumerate(told) if "right" not in one["master"])
    raise Finding("wrong master copy", f"The master copy of rank {off} is not right {where}.")


def _look_at_numbers(told: list[dict], where: str) -> None:
    if not all(one["in place"] for one in told):
        raise Finding(
            "another memory",
            f"`numbers` is no longer in the same memory {where}: the model's parameters are views "
            "of that memory. Write into it.",
        )
    if all(one["flat"] for one in told):
        return
    if all(one["own flat"] for one in told):
        raise Finding(
            "not gathered",
            f"Each rank has written its own shard back, and not those of the others, {where}. The "
            "next forward would use parameters most of which are old.",
        )
    if all(one["old flat"] for one in told):
        raise Finding(
            "not written back",
            f"The master copies are right, and the model's bf16 values are the old ones {where}.",
        )
    raise Finding(
        "wrong numbers",
        f"The master copies are right, and the model's values are not those copies rounded to "
        f"bf16, {where}.",
    )


def _look_at_counts(told: list[dict], where: str) -> None:
    for rank, one in enumerate(told):
        if one["out"] is None:
            raise Finding(
                "not a count",
                f"Rank {rank} got a {one['kind']} back {where}; a whole number is wanted.",
            )
    if all(one["out"] == one["counts"]["right"] for one in told):
        return
    said = f"The step is right, and the count is not, {where}."
    for idea, (name, text) in COUNTS.items():
        if all(one["out"] == one["counts"][idea] for one in told):
            raise Finding(name, f"{said} {text}")
    if sum(one["out"] == one["counts"]["right"] for one in told) == 1:
        raise Finding(
            "on one rank only", f"{said} It is right on one rank, and every rank needs it."
        )
    if all(one["out"] == 0 for one in told):
        raise Finding(
            "nothing counted",
            f"{said} It is 0. Is the number before the step compared with itself? What was "
            "gathered may have been written over it.",
        )
    raise Finding("wrong count", said)


def _look_at_traffic(told: list[dict], numbers: int, where: str) -> None:
    n = len(told)
    right = 2 * (n - 1) / n * 2 * numbers
    for rank, one in enumerate(told):
        if one["bytes"] > right + 2 * (n - 1) / n * 8 * SLACK:
            raise Finding(
                "too much sent",
                f"Rank {rank} had to send {one['bytes']} bytes {where}; a reduce-scatter and an "
                f"all-gather of bf16 are {right:.0f}, and a count is a few more. An all-reduce of "
                "the gradients contains an all-gather already, and the master copies are not sent "
                "at all.",
            )


def _look_at_memory(reports: list[dict], when: str) -> None:
    for rank, report in enumerate(reports):
        shard = 4 * report["shard"]
        # A momentum, and a gradient that may stay; a few small tensors
        if report["kept"] > 3 * shard + 256 or report["steps"][-1]["state"] > shard + 64:
            raise Finding(
                "states of the whole",
                f"All values are right, and rank {rank} keeps {report['kept']} bytes more after a "
                f"step than before {when}; the momentum of its shard is {shard}. It runs and does "
                "not shard: ZeRO-1 keeps no states of the parameters that other ranks update.",
            )


MASTER = Exercise(
    name="master_step",
    title="An update that is not lost",
    points=4,
    judge=judge_master,
    when_right=(
        "Most of the updates were too small for 16 bits, and none was lost: after six steps the "
        "master copies were those of float32, the model's values those copies rounded, on three "
        "ranks and on two; each rank kept states of its shard alone, and sent two moves of bf16."
    ),
    hints=(
        "Which of the ranks' gradients does a rank need in order to update its shard, and which "
        "verb gives it just that?",
        "The optimizer knows `master` alone and reads `master.grad`, in float32, for this shard.",
        "`numbers` is overwritten in the end. What do you have to remember of it for the count?",
        "An update is lost where the master copy has moved and the rounded value is what it was.",
    ),
)
