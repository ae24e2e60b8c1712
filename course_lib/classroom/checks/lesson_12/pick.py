"""`pick_stage` of lesson 12: the fastest setting whose states fit on every rank of a machine.

The choice is run on the judge's ranks, and what it really holds is said beside the room there was.
"""

from __future__ import annotations

import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_world_numbers
from course_lib.classroom.checks.lesson_12.pick_trial import SETTINGS, TIERS
from course_lib.classroom.checks.lesson_12.ready import take

SMALL = 2048  # bytes: a few flags, and not a model
IDEAS = {
    "gradients forgotten": (
        "gradients forgotten",
        "This choice counts what is held *between* steps. After a backward there are gradients as "
        "well.",
    ),
    "the host forgotten": (
        "the host forgotten",
        "What is offloaded is stored on the host, and the host has its own room.",
    ),
    "one sum for all tiers": (
        "one sum for all tiers",
        "Room on the host is no room on the device: each tier is held to its own.",
    ),
    "sixteen bytes": (
        "sixteen bytes a number",
        "This choice takes the closed form, bytes times Ψ. A rank also holds padding, and one step "
        "counter for each part of a parameter; and where Ψ does not divide, ranks differ.",
    ),
    "rank 0's room": (
        "one rank's room",
        "The choice fits on the ranks with much room, and not on the rank with the least.",
    ),
}


def judge_pick(answer: Answer, judge: Judge) -> None:
    """Seven machines on three ranks, then on two that are not the notebook's first two."""
    take(answer, judge, "pick_trial")
    seed = int.from_bytes(os.urandom(2), "big")
    for members in ([0, 1, 2], [1, 2]):
        when = on(members)
        call = f'bench.part("lesson_12.pick_trial").run(pick_stage, {seed}, __trial__)'
        reports = judge.trial(answer, call, members, when)
        every = reports[0]["machines"]
        idea = next(
            (n for n in IDEAS if all(one["readings"][n] == one["chosen"] for one in every)), None
        )
        always = {one["chosen"] for one in every} if len(every) > 1 else set()
        for k in range(len(every)):
            told = [report["machines"][k] for report in reports]
            where = f"{when}, on machine {k + 1}"
            if len(members) == 2 and any(one["chosen"] != one["right"] for one in told):
                refuse_world_numbers(answer, where)
            _look(told, where, idea, always)


def _look(told: list[dict], where: str, idea: str | None, always: set) -> None:
    for rank, one in enumerate(told):
        if one["changed"]:
            raise Finding("input changed", f"Your function changed what rank {rank} was given.")
        if one["chosen"] == "strange":
            raise Finding(
                "not one of the settings",
                f"Rank {rank} got a {one['kind']} back {where}, which is none of the settings "
                "that it was given. Return one of them as it is, or None.",
            )
    chosen, right = [one["chosen"] for one in told], told[0]["right"]
    if len(set(chosen)) > 1:
        raise Finding(
            "the ranks disagree",
            f"The ranks chose {', '.join(map(_shown, chosen))} {where}. Each has looked at its own "
            "room alone; an engine of two stages waits for ever. Tell each other what fits.",
        )
    if chosen[0] != right:
        _refuse(told, chosen[0], right, where, idea, always)
    for rank, one in enumerate(told):
        if one["bytes"] > SMALL:
            raise Finding(
                "too much sent",
                f"Rank {rank} sent {one['bytes']} bytes {where}. To agree on a setting, one "
                "flag for "
                "each setting is enough.",
            )


def _refuse(
    told: list[dict],
    chosen: int | None,
    right: int | None,
    where: str,
    idea: str | None,
    always: set,
) -> None:
    if chosen is None:
        raise Finding("gave up", f"None was returned {where}, and one of the settings fits.")
    if always == {len(SETTINGS) - 1}:
        raise Finding(
            "further than needed",
            "It is the last setting on every machine. That keeps least on the device, is the "
            "slowest, and needs the most of the host: take the first that fits.",
        )
    for rank, one in enumerate(told):
        over = [tier for tier in TIERS if one["holds"][tier] > one["room"][tier]]
        if over:
            text = (
                f"{_shown(chosen)} was run {where}: rank {rank} held {one['holds'][over[0]]:,} "
                f"bytes on its {over[0]} and had room for {one['room'][over[0]]:,}."
            )
            if always == {0}:
                more = "Stage 0 runs where there is room, and every rank holds everything."
                raise Finding("it does not shard", f"{text} {more}")
            if idea:
                name, more = IDEAS[idea]
                raise Finding(name, f"{text} {more}")
            raise Finding("does not fit", text)
    if right is not None and chosen > right:
        raise Finding(
            "further than needed",
            f"{_shown(chosen)} was run {where}, and it fits. So does {_shown(right)}, which comes "
            "before it and is faster.",
        )
    raise Finding("wrong setting", f"{_shown(chosen)} is not the first that fits {where}.")


def _shown(chosen: int | None) -> str:
    if chosen is None:
        return "None"
    one = SETTINGS[chosen]
    away = one.get("offload")
    more = "" if away is None else " with both away" if isinstance(away, dict) else " with cpu"
    return f"stage {one['stage']}{more}"


PICK = Exercise(
    name="pick_stage",
    title="A stage for three machines",
    points=4,
    judge=judge_pick,
    when_right=(
        "On seven machines, of three ranks and of two, it was the first setting that fits on every "
        "rank, to the byte. The chosen engines were run, and the tight rank held no more than it "
        "could."
    ),
    hints=(
        "`states(config, stage=…, n=…, rank=…, …)` of `course_lib.estimate` counts one rank's "
        "bytes; `.by_tier(alive=True)` with gradients.",
        "A setting fits if it fits on every rank: its own bytes, into its own room, on each tier. "
        "Each rank knows its own answer alone.",
        "Make a 1 or a 0 of each setting on every rank, and take the minimum over the ranks. The "
        "first 1 that is left is the choice of all ranks.",
    ),
)
