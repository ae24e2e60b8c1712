"""`pick_stage` of lesson 12: the fastest setting whose states fit on every rank of a machine.

The choice is run on the judge's ranks, and what it really holds is said beside the room there was.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_world_numbers
from course_lib.classroom.checks.lesson_12 import pick_trial as trial
from course_lib.classroom.checks.lesson_12.pick_machines import (
    MACHINES,
    SETTINGS,
    TIERS,
    Machine,
    config_of,
    first,
    machines,
    needs,
    readings,
)
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed

SMALL = 2048  # bytes: a few flags, and not a model
CLOSED = (
    "This choice takes the closed form, bytes times Ψ. A rank also holds padding, and one step "
    "counter for each part of a parameter; and where Ψ does not divide, ranks differ."
)
EXACT = "Bytes are whole numbers: a setting fits if it needs as many as there are, or fewer."
MOMENTS = "Training is with AdamW, which keeps two moments for each parameter, and counters."
LADDER = "The settings come in the order of the list, whatever their stages: the first that fits."
# What would choose like this (`pick_machines.readings`): the name of the idea, and words for it.
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
    "the device forgotten": ("the device forgotten", "The device has its own room as well."),
    "one sum for all tiers": (
        "one sum for all tiers",
        "Room on the host is no room on the device: each tier is held to its own.",
    ),
    "sixteen bytes": ("sixteen bytes a number", CLOSED),
    "nearly": ("not to the byte", f"It comes close, and it is more than there is. {EXACT}"),
    "less than": ("not to the byte", f"It would fit to the byte. {EXACT}"),
    "in float32": (
        "rounded on the way",
        "The bytes went through float32, which counts in steps of 2,048 at 2 · 10¹⁰. Send whole "
        "numbers as int64.",
    ),
    "rank 0's room": (
        "one rank's room",
        "The choice fits on the ranks with much room, and not on the rank with the least.",
    ),
    "rank 0 decides": (
        "one rank's room",
        "The choice fits on the ranks with much room, and not on the rank with the least.",
    ),
    "some rank": (
        "one rank is enough",
        "The choice fits on *some* rank. It has to fit on every rank.",
    ),
    "the least room": (
        "the least room",
        "What one rank needs was held against another rank's room: the least room of all, or rank "
        "0's needs on every rank. Shards are not equal: each rank counts its own bytes (`rank=`), "
        "and holds them against its own room.",
    ),
    "the mean room": (
        "the mean room",
        "This choice shares the room out over the ranks. A rank cannot use the room of another.",
    ),
    "another optimizer": ("another optimizer", MOMENTS),
    "momentum": ("another optimizer", MOMENTS),
    "the last first": (
        "the last of the first ones",
        "Each rank found its own first setting, and you took the last of these. It need not fit "
        "on a rank whose first came earlier: another setting needs another tier.",
    ),
    "sorted": ("another order", LADDER),
}


def judge_pick(answer: Answer, judge: Judge) -> None:
    """Machines on three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed() % 1000
    for members in (THREE, TWO):
        when, plans = on(members), machines(seed, len(members))
        data = (seed, [plan._asdict() for plan in plans])
        reports = judge.trial(answer, trial.run, *data, members=members, when=when)
        choices = [[one["chosen"] for one in report["machines"]] for report in reports]
        known = {large: config_of(seed, large=large) for large in (False, True)}
        need = {large: needs(config, len(members)) for large, config in known.items()}
        right = [first(need[plan.large], plan.rooms, TIERS, plan.order) for plan in plans]
        idea = None
        if any(chosen != right for chosen in choices):
            read = [readings(p, known[p.large], need[p.large]) for p in plans]
            idea = next((n for n in IDEAS if [one[n] for one in read] == choices[0]), None)
        always = set(choices[0][: len(MACHINES)])
        for k, plan in enumerate(plans):
            told = [{**report["machines"][k]} for report in reports]
            for rank, one in enumerate(told):
                one["room"] = plan.rooms[rank]
                if plan.large and isinstance(one["chosen"], int):
                    one["holds"] = need[True][one["chosen"]][rank]
            where = f"{when}, on machine {k + 1}"
            if len(members) == 2 and any(one["chosen"] != right[k] for one in told):
                refuse_world_numbers(answer, where)
            _look(told, plan, right, k, where, idea, always)


def _look(
    told: list[dict],
    plan: Machine,
    every: list[int | None],
    k: int,
    where: str,
    idea: str | None,
    always: set,
) -> None:
    for rank, one in enumerate(told):
        if one["changed"]:
            raise Finding("input changed", f"Your function changed what rank {rank} was given.")
        if one["chosen"] == "strange":
            raise Finding(
                "not one of the settings",
                f"Rank {rank} got a {one['kind']} back {where}, which is none of the settings "
                "that it was given. Return one of them as it is, or None.",
            )
    chosen, right = [one["chosen"] for one in told], every[k]
    if len(set(chosen)) > 1:
        raise Finding(
            "the ranks disagree",
            f"The ranks chose {', '.join(map(_shown, chosen))} {where}. Each has looked at its own "
            "room alone; an engine of two stages waits for ever. Tell each other what fits.",
        )
    if chosen[0] != right:
        if k and always == {every[0]}:
            raise Finding(
                "kept from another machine",
                f"{_shown(chosen[0])} is right on machine 1, and was chosen {where} too. There is "
                "another room, or another model: keep nothing between calls.",
            )
        _refuse(told, plan, chosen[0], right, where, idea, always)
    for rank, one in enumerate(told):
        if one["bytes"] > SMALL:
            raise Finding(
                "too much sent",
                f"Rank {rank} sent {one['bytes']} bytes {where}. To agree on a setting, one "
                "flag for each setting is enough.",
            )


def _refuse(
    told: list[dict],
    plan: Machine,
    chosen: int | None,
    right: int | None,
    where: str,
    idea: str | None,
    always: set,
) -> None:
    name, more = IDEAS.get(idea, ("", ""))
    if chosen is None:
        text = f"None was returned {where}, and one of the settings fits."
        raise Finding(name or "gave up", f"{text} {more}".rstrip())
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
                f"{_shown(chosen)} was {'counted' if plan.large else 'run'} {where}: rank {rank} "
                f"held {one['holds'][over[0]]:,} bytes on its {over[0]} and had room for "
                f"{one['room'][over[0]]:,}."
            )
            if always == {0} and not name:
                more = "Stage 0 runs where there is room, and every rank holds everything."
                raise Finding("it does not shard", f"{text} {more}")
            raise Finding(name or "does not fit", f"{text} {more}".rstrip())
    if right is not None and plan.order.index(chosen) > plan.order.index(right):
        text = (
            f"{_shown(chosen)} was tried {where}, and it fits. So does {_shown(right)}, which "
            "comes before it and is faster."
        )
        raise Finding(name or "further than needed", f"{text} {more}".rstrip())
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
        "On each machine, of three ranks and of two, it was the first setting that fits on every "
        "rank, to the byte. On the small ones the chosen engines were run, and the tight rank held "
        "no more than it could."
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
