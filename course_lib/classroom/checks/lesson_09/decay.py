"""`shard_groups` of lesson 09: an optimizer's groups, with pieces in the place of parameters.

What comes back is looked at number by number, then AdamW trains with it beside one process.
"""

from __future__ import annotations

import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_09 import decay_trial as trial

TOLERANCE = 1e-10
TROUBLE = {
    "not groups": (
        "not groups",
        "a list of dictionaries is wanted, each with a list of tensors as its `params`",
    ),
    "copies": (
        "copies",
        "a part has memory of its own. The optimizer would update that memory, and the model's "
        "parameters, which are views of the bucket, would keep their old values. A slice of "
        "`shard` is a view",
    ),
    "beyond the shard": (
        "not cut",
        "a part reaches beyond the rank's shard: the optimizer would keep moments of elements that "
        "another rank updates. It runs, and it does not shard",
    ),
    "not parameters": (
        "not parameters",
        "a part is no `nn.Parameter` of one dim and of the shard's dtype; make an nn.Parameter of "
        "each piece",
    ),
}


def judge_decay(answer: Answer, judge: Judge) -> None:
    """On three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, trial.__name__)
    seed = int.from_bytes(os.urandom(3), "big")
    for members in ([0, 1, 2], [1, 2]):
        when = on(members)
        reports = judge.trial(answer, trial.train, seed, members=members, when=when)
        refuse_none(reports, when, "a list of groups")
        if len(members) == 2 and not all(report["clean"] for report in reports):
            refuse_world_numbers(answer, when)
        for rank, report in enumerate(reports):
            _look_at_groups(report, f"on rank {rank}, {when}")
        _look_at_numbers(reports, when)
        for rank, report in enumerate(reports):
            _look_at_count(report, f"on rank {rank}, {when}")
        gap = max(report["gap"] for report in reports)
        if not gap <= TOLERANCE:
            raise Finding(
                "other weights",
                f"The groups look right, and after four steps the weights are off by {gap:.2g}, "
                f"{when}.",
            )


def _look_at_groups(report: dict, where: str) -> None:
    if report["changed"]:
        raise Finding(
            "input changed",
            f"Your function changed the groups that it was given, {where}. Make new dictionaries.",
        )
    if report["ops"]:
        raise Finding(
            "a message", f"Something was sent {where}. Every rank has what it needs for this."
        )
    if report["spoiled"] or report["kept"]:
        raise Finding(
            "kept between calls",
            f"Your function was called for another optimizer before, and the two share groups or "
            f"parts {where}. Each call makes lists and dictionaries of its own.",
        )
    if report["trouble"]:
        name, text = TROUBLE[report["trouble"]]
        raise Finding(name, f"What came back {where}: {text}.")


def _look_at_count(report: dict, where: str) -> None:
    if report["groups"] == 3 and not report["small"]:
        raise Finding(
            "other groups",
            f"For an optimizer with two groups of one element each and an empty one, your groups "
            f"hold something else than this rank's piece {where}. Keep a group without pieces.",
        )
    if report["groups"] != 3:
        raise Finding(
            "other groups",
            f"There are {report['groups']} groups {where}, and 3 were given. Keep each with its "
            "options, also one that this rank has nothing of: a schedule sets them by number.",
        )


def _look_at_numbers(reports: list[dict], when: str) -> None:
    every = [one for report in reports for one in report["numbers"]]
    if any(one["owner"] == -2 and one["times"] for one in every):
        raise Finding(
            "padding trained",
            f"A part holds padding {when}. Padding has no gradient, and it would get moments and "
            "decay: take `stop - start` elements from `at` on.",
        )
    if any(one["owner"] == -1 and one["times"] for one in every):
        raise Finding(
            "frozen and trained",
            f"A parameter that is in no group is in yours {when}. It is not to be updated.",
        )
    if any(one["times"] > 1 for one in every):
        raise Finding(
            "twice",
            f"An element of the shard is in two parts {when}. Two parameters may be alike, as "
            "fresh biases are: `is` and `id` tell them apart, and a shape or a value does not.",
        )
    trained = [one for one in every if one["owner"] >= 0]
    if any(not one["times"] for one in trained):
        raise Finding(
            "numbers left out",
            f"{sum(not one['times'] for one in trained)} elements that belong to a group are in "
            f"none of yours {when}: no rank updates them.",
        )
    wrong = [one for one in trained if not one["right"]]
    if not wrong:
        return
    if not any(one["as"] for one in wrong):
        raise Finding(
            "options lost",
            f"Your groups do not have the options of those that were given, {when}: `lr`, "
            "`weight_decay` and whatever else stands beside `params`.",
        )
    for kind, name in enumerate(("the first", "the second", "the last")):
        if all(one["as"] == [kind] for one in trained):
            raise Finding(
                "one group for all",
                f"Every element has the options of {name} group {when}. A bucket mixes the groups: "
                "look up for each piece to which its parameter belongs.",
            )
    if all(one["as"] == [1] for one in wrong if one["owner"] == 0):
        raise Finding(
            "decay by the pieces' shape",
            f"Elements that are to be decayed are not, {when}. Is that decided by how many dims a "
            "part has? A piece of a flat bucket has one, whatever it is a piece of.",
        )
    raise Finding(
        "another group's options",
        f"{len(wrong)} elements have the options of another group than their parameter's, {when}. "
        "The pieces come in the bucket's order, which is not the order of the groups.",
    )


DECAY = Exercise(
    name="shard_groups",
    title="Decay, under the cut",
    points=3,
    judge=judge_decay,
    when_right=(
        "Every element that is trained is in one part, in its own group, and in the memory of the "
        "model; padding and frozen elements are in none; and four steps of AdamW on the pieces "
        "were those of AdamW on the replicated model, on three ranks and on two."
    ),
    hints=(
        "Go through the groups, and in each through the pieces: which of them are of one of its "
        "parameters?",
        "`parameter in group['params']` compares values, since tensors have an == of their own. "
        "`is` and `id` compare tensors.",
        "A slice of `shard` is a view of it, and an `nn.Parameter` of that view is one still.",
        "`{**group, 'params': parts}` is a new dictionary with all other options as they are.",
    ),
)
