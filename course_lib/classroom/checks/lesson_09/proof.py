"""`is_sharded` of lesson 09: a test that tells sharded optimizers from those that only run.

The answer is tried on eighteen optimizers on three ranks, and on half of them on two; what it lets
pass says what it has not looked at.
"""

from __future__ import annotations

import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_world_numbers
from course_lib.classroom.checks.lesson_09 import proof_trial as trial
from course_lib.classroom.checks.lesson_09.proof_boxes import SHARDED

# What to say where something passes that should not. The first that fits counts: put first what
# explains most.
PASSED = {
    "replicas": (
        "whole states pass",
        "One that runs and does not shard: every rank has the moments of all elements, as in plain "
        "data parallelism. That the training is right says nothing about where the states are.",
    ),
    "one shard": (
        "wrong training passes",
        "One whose ranks all update the first shard, and no rank the others. Small states are no "
        "proof: compare the weights with those of one process.",
    ),
    "own rows": (
        "agreement taken for training",
        "One in which each rank updates its shard by the gradient of its own rows. All ranks agree "
        "on the weights, and they are wrong: compare with one process that reads all rows.",
    ),
    "never gathered": (
        "never gathered",
        "One that never gathers what the others have updated: each rank's model is right in its "
        "own shard and old in the others. Compare all parameters, on every rank.",
    ),
    "forgets": (
        "one step",
        "One that forgets its moments after each step. The first step is right, and later ones "
        "are not: train several.",
    ),
    "parameters averaged": (
        "parameters averaged",
        "One that averages parameters where gradients were meant, with moments of all elements.",
    ),
    "whole on the others": (
        "one rank asked",
        "One whose first rank holds little while the others hold states of everything. Ask every "
        "rank, and let the ranks agree on the verdict.",
    ),
    "all on the last": (
        "the sum of all ranks",
        "One whose last rank holds all states and the others none. Together that is the whole "
        "once, and one rank needs the memory of a replica: look at the largest.",
    ),
    "views of the whole": (
        "numel believed",
        "One whose moments have as many elements as a shard, and are views of memory for all "
        "elements. Count storages, not elements: `course_lib.memory.held` does.",
    ),
    "above": (
        "more than two thirds pass",
        "One whose last rank holds more than two thirds of the states in bytes, and less than all. "
        "The limit is two thirds of what one process keeps.",
    ),
    "whole later": (
        "counted too early",
        "One whose states grow in the second step: from then on each moment is a view of memory "
        "for all elements. Count when several steps are over.",
    ),
    "rounded": (
        "loose comparison",
        "One that gathers parameters in float32: its weights are off by some 10⁻⁸, which is more "
        "than 10⁻⁹. `torch.allclose` has a relative tolerance of its own unless you set it.",
    ),
    "idle": (
        "not all weights compared",
        "One whose losses are right, and its first and last parameter too, and which forgets "
        "AdamW's decay where a gradient is zero. Compare all weights, not losses.",
    ),
    "one rank old": (
        "one rank compared",
        "One whose last rank does not take over a parameter that another rank has updated. The "
        "other ranks are right: compare the weights on every rank.",
    ),
}
REFUSED = {
    "uneven": (
        "uneven shards refused",
        "One whose shards are uneven, as they are where the ranks do not divide the parameters. "
        "A shard is the whole over n, rounded up; step counters take a few bytes more.",
    ),
    "owners": (
        "owners refused",
        "One that gives whole parameters to ranks: more to one than to another, and to none more "
        "than two thirds of the states. It is sharded too. (Count states alone, not parameters.)",
    ),
    "momentum": (
        "another optimizer refused",
        "One that is SGD with momentum, whose states have another name and another size than "
        "Adam's. `box.whole` tells what one process would keep.",
    ),
    "even": ("a sharded one refused", "A plain ZeRO-1."),
}


def judge_proof(answer: Answer, judge: Judge) -> None:
    """Every box on three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, trial.__name__)
    seed = int.from_bytes(os.urandom(2), "big")
    for members in ([0, 1, 2], [1, 2]):
        when = on(members)
        reports = judge.trial(answer, trial.ask, seed, members=members, when=when)
        said = [report["verdicts"] for report in reports]
        right = {kind: kind in SHARDED for kind in said[0]}
        wrong = [k for k in right if any(one[k][1] is not right[k] for one in said)]
        if not wrong:
            continue
        for kind in right:
            _look_at_kind(kind, [one[kind] for one in said], when)
        if len(members) == 2:
            refuse_world_numbers(answer, when)
        _refuse(wrong, said, when)


def _look_at_kind(kind: str, said: list[tuple], when: str) -> None:
    for rank, (called, verdict) in enumerate(said):
        if verdict is None:
            if called == "NoneType":
                raise Finding(
                    "nothing returned",
                    f"Rank {rank} got None back {when}; every rank has to return True or False.",
                )
            raise Finding(
                "no verdict", f"Rank {rank} got a {called} back {when}; return True or False."
            )


def _refuse(wrong: list[str], said: list[dict], when: str) -> None:
    verdicts = {kind: {one[kind][1] for one in said} for kind in said[0]}
    if all(found == {True} for found in verdicts.values()):
        raise Finding("always true", f"Every optimizer passes, {when}: what could fail your test?")
    if all(found == {False} for found in verdicts.values()):
        raise Finding(
            "always false",
            f"No optimizer passes, and some are sharded, {when}. Does your one process start from "
            "the same weights, and does its loss take the mean over the rows of all ranks?",
        )
    divided = [kind for kind in wrong if len(verdicts[kind]) > 1]
    if divided and len(divided) == len(wrong):
        raise Finding(
            "ranks disagree",
            f"Your ranks come to different verdicts on {len(divided)} of {len(verdicts)} "
            f"optimizers, {when}. Tell the others what one rank has seen: a verdict is an "
            "all-reduce.",
        )
    for kind, (name, text) in PASSED.items():
        if verdicts.get(kind) == {True}:
            raise Finding(name, f"Your test lets something pass, {when}. {text}")
    for kind, (name, text) in REFUSED.items():
        if verdicts.get(kind) == {False}:
            raise Finding(name, f"Your test refuses something that is sharded, {when}. {text}")
    raise Finding(
        "ranks disagree", f"Your ranks come to different verdicts on an optimizer, {when}."
    )


PROOF = Exercise(
    name="is_sharded",
    title="Prove that it shards",
    points=4,
    judge=judge_proof,
    when_right=(
        "Your test passed all that train as one process and share out their states, evenly or not, "
        "and refused what only runs: replicas, states hidden in views, all of them on one rank, "
        "ranks that train on rows of their own, or one step alone that was right."
    ),
    hints=(
        "Two claims have to hold: it trains as one process does, and no rank keeps much more than "
        "an n-th of the states. What could be true of the one and false of the other?",
        "One process: a copy of `box.model` from before, `box.whole` of its parameters, and the "
        "mean of the losses of all ranks' rows. More than one step.",
        "`held(box.optimizer).by_kind['optimizer states']` counts storages. How much has one "
        "process? What of that may the *largest* rank have?",
        "In the end all ranks have to say the same: one rank's False makes all of them say False.",
    ),
)
