"""`shard_of_all` of lesson 10: one bucket of parameters that not every rank has a gradient for.

Held against one process that has all ranks' losses; the ledger says what was sent for it.
"""

from __future__ import annotations

import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_10 import all_trial as trial
from course_lib.classroom.checks.lesson_10.all_trial import EMPTY

FLAG = 64  # bytes that a name may cost, however it is told
TIED = (
    "tied twice",
    "The tied weight is in the bucket twice. It has two names and is one parameter with one "
    "gradient: put in twice, it is sent twice and has two places to update.",
)
FROZEN = (
    "frozen too",
    "A frozen parameter (`requires_grad` is False) is in the bucket. It is not trained.",
)
IDEAS = {
    "a mean": ("a mean", "It is divided by the number of ranks; the sum was asked for."),
    "its own": ("not summed", "Each rank has a piece of its own gradient alone."),
    "tied twice": TIED,
    "frozen too": FROZEN,
    "tied twice, frozen too": TIED,
    "whole": ("not cut", "Every rank returns the whole sum. Right, and not sharded."),
    "turned": (
        "another order",
        "The parameters are packed from the last to the first; asked for is the order of `named`.",
    ),
    "the last mention": (
        "another order",
        "A tied weight is packed where it is named *first*.",
    ),
    "sorted": ("another order", "The order is that of `named`, and not of the alphabet."),
    "turned, once": ("another order", "The order is that of `named`, from the first to the last."),
    "a mean over its users": (
        "a mean over its users",
        "Each gradient is divided by the number of ranks that had one; the sum was asked for.",
    ),
    "equal ones once": (
        "equal taken for the same",
        "Two parameters with equal values are in it once. Tied is one tensor by two names, which "
        "`is` tells; values may be equal by chance.",
    ),
    "one of a shape": (
        "equal taken for the same",
        "Of parameters with equal shapes one is in it. Tied is one tensor by two names: ask `is`.",
    ),
    "unused left out": (
        "unused left out",
        "A parameter that no rank used is not in the bucket, and its length differs from step to "
        "step. Its place holds zeros.",
    ),
    "padded each": (
        "padded one by one",
        "Each parameter was padded by itself. The bucket is padded once, at its end.",
    ),
    "padded in front": ("padded in front", "The zeros are to stand at the end of the bucket."),
    "rounded": (
        "rounded on the way",
        "It went through a narrower type on the way. Keep the dtype of the gradients.",
    ),
}
SAID = {
    "by all": (
        "used by every rank",
        "Only what *every* rank has a gradient for is named. Asked is for those of any rank.",
    ),
    "its own": (
        "its own flags",
        "Each rank names what it has a gradient for itself. The optimizers of different ranks "
        "would then treat one parameter differently: ask the others.",
    ),
    "nonzero": (
        "a zero is a gradient",
        "A gradient that happens to be zero is left out. The parameter took part: weight decay and "
        "moments go on for it, as in one process.",
    ),
    "all": (
        "used by nobody",
        "All trained parameters are named, among them one that no rank used. In one process its "
        "gradient is None, and an optimizer leaves it alone; with zeros it would decay.",
    ),
    "all names": (
        "used by nobody",
        "All names are there, those of frozen and unused parameters as well.",
    ),
    "not frozen": (
        "used by nobody",
        "Every parameter that is not frozen is named, used or not, by any name.",
    ),
    "both names": (
        "by both names",
        "The tied weight is named twice. Its first name will do: it is one parameter.",
    ),
    "the last names": (
        "by the other name",
        "The tied weight goes by its second name; asked for is its first.",
    ),
}


def judge_all(answer: Answer, judge: Judge) -> None:
    """Three steps on three ranks and one with an empty rank, then on two that are not the
    notebook's first two."""
    judge.take(answer, trial.__name__)
    seed = int.from_bytes(os.urandom(3), "big")
    for members, empty in (([0, 1, 2], []), ([0, 1, 2], [EMPTY]), ([1, 2], [])):
        when = on(members) + (f", where rank {EMPTY} has no rows" if empty else "")
        how = {"members": members, "when": when, "empty": empty}
        reports = judge.trial(answer, trial.train, seed, bool(empty), **how)
        for step, told in enumerate(zip(*reports, strict=True)):
            where = when if empty else f"{when}, in step {step + 1}"
            if len(members) == 2 and any("right" not in one["ideas"] for one in told):
                refuse_world_numbers(answer, where)
            look_at_shards(told, where)
            look_at_names(told, where)
            look_at_traffic(told, where)


def look_at_shards(told: list[dict], where: str) -> None:
    """The idea that explains all ranks' shards, where they are not right."""
    refuse_none(told, where, "the shard and the names")
    for rank, one in enumerate(told):
        if not one["pair"] or one["shape"] is None:
            got = f"a pair that begins with a {one['first']}" if one["pair"] else one["kind"]
            raise Finding(
                "not a pair",
                f"Rank {rank} got {got} back {where}; expected are two things: a tensor, the "
                "shard, and a set of names.",
            )
    if all("right" in one["ideas"] for one in told):
        return
    for idea, (name, text) in IDEAS.items():
        if all(idea in one["ideas"] for one in told):
            raise Finding(name, f"The shard is not that of the sum {where}. {text}")
    one = told[0]
    if all(each["shape"] == [each["of its own"]] for each in told):
        raise Finding(
            "its own bucket",
            f"Each rank sent what it has a gradient for itself {where}. Another rank's elements at "
            "the same place belong to another parameter, and were added all the same.",
        )
    if one["shape"] != [one["wanted"]]:
        raise Finding(
            "wrong length",
            f"Rank 0 returned a tensor of shape {one['shape']} {where}. All distinct parameters "
            f"that are trained, padded and cut, give {one['wanted']} elements.",
        )
    raise Finding("wrong shard", f"The shard is not that of the sum over the ranks {where}.")


def look_at_names(told: list[dict], where: str) -> None:
    """Which parameters got a gradient, on any rank."""
    for rank, one in enumerate(told):
        if one["names"] is None:
            raise Finding(
                "no names",
                f"The shard is right. Beside it rank {rank} returned no names {where}; a set of "
                "strings is expected.",
            )
    if all("right" in one["names are"] for one in told):
        return
    for idea, (name, text) in SAID.items():
        if all(idea in one["names are"] for one in told):
            raise Finding(name, f"The shard is right, the names are not {where}. {text}")
    raise Finding(
        "wrong names",
        f"The shard is right, the names are not {where}. Wanted are the first names of the "
        "parameters that got a gradient on any rank.",
    )


def look_at_traffic(told: list[dict], where: str) -> None:
    """One reduce-scatter and a few flags; nothing left behind."""
    for rank, one in enumerate(told):
        if one["changed"]:
            raise Finding(
                "input changed",
                f"Your function changed `named`, or which parameters are trained, on rank {rank}, "
                f"{where}. Both are the caller's.",
            )
        if one["spoiled"]:
            raise Finding(
                "one buffer reused",
                f"This call has written over what an earlier one returned on rank {rank}, {where}. "
                "Each call returns a shard and names of its own.",
            )
        scatters = one["ops"].get("reduce_scatter", 0)
        if not scatters:
            raise Finding(
                "all-reduce, then cut",
                f"Shard and names are right. Rank {rank} did not use a reduce-scatter {where}, but "
                f"{', '.join(one['ops']) or 'nothing'}: every rank gets every sum, and throws away "
                "what is not its piece.",
            )
        allowed = one["must"] + FLAG * one["flags"]
        if scatters > 1 or one["bytes"] > allowed:
            raise Finding(
                "too much sent",
                f"Shard and names are right. Rank {rank} sent {one['bytes']} bytes {where}, in "
                f"{scatters} reduce-scatters among others; one bucket is {one['must']}, and a few "
                "flags.",
            )
        if one["left"]:
            raise Finding(
                "gradients left",
                f"Rank {rank} still has a gradient in {one['left'][0]} {where}: what has been sent "
                "is to be forgotten.",
            )
        if one["held"] > 8 * one["wanted"] + 64:
            raise Finding(
                "a view of the whole",
                f"The storage of rank {rank}'s shard has {one['held']} bytes {where}: the shard is "
                "a view of the whole bucket, which stays alive.",
            )


ALL_OF_THEM = Exercise(
    name="shard_of_all",
    title="Unused, tied, frozen",
    points=4,
    judge=judge_all,
    when_right=(
        "On three ranks and on two, in three steps, with another branch on each rank: the shard is "
        "that of one process, the tied weight is in it once, what is frozen not at all, and all "
        "ranks name the same parameters; one reduce-scatter, and a few flags."
    ),
    hints=(
        "All ranks have to build the *same* bucket, whatever each has used. From what can every "
        "rank tell the same places?",
        "Where a rank has no gradient it sends zeros: they do not change the sum. The sum does not "
        "tell whether any rank had one.",
        "A flag for each parameter, yes or no; a maximum over the ranks tells whether any said "
        "yes. None and zero are not the same answer.",
    ),
)
