"""`pick_stage` of lesson 12: the fastest setting whose states fit on every rank of a machine.

The choice is run on the judge's ranks, and what it really holds is said beside the room there was.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
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
from course_lib.classroom.checks.words import Page

SMALL = 2048  # bytes: a few flags, and not a model
SAYS = Page("lesson_12/pick_stage")


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
            ways = (zip(*pairs, strict=True) for pairs in zip(*read, strict=True))
            idea = next((entry for (entry, *_), way in ways if list(way) == choices[0]), None)
        for k, plan in enumerate(plans):
            notes = [report["machines"][k] for report in reports]
            for rank, one in enumerate(notes):
                if plan.large and isinstance(one["chosen"], int):
                    one["holds"] = need[True][one["chosen"]][rank]
            where = f"{when}, on machine {k + 1}"
            look_at_choices(notes, where)
            chosen = choices[0][k]
            if chosen != right[k]:
                always = set(choices[0][: len(MACHINES)])
                if k and always == {right[0]}:
                    raise SAYS("kept from another machine", got=shown(chosen), where=where)
                raise why(notes, plan, right[k], where, idea, always)
            for rank, one in enumerate(notes):
                if one["bytes"] > SMALL:
                    raise SAYS("too much sent", rank=rank, bytes=one["bytes"], where=where)


def look_at_choices(notes: list[dict], where: str) -> None:
    """One of the settings on each rank, the same on all, and nothing else changed."""
    for rank, one in enumerate(notes):
        if one["changed"]:
            raise SAYS("input changed", rank=rank)
        if one["chosen"] == "strange":
            raise SAYS("not one of the settings", rank=rank, kind=one["kind"], where=where)
    chosen = [one["chosen"] for one in notes]
    if len(set(chosen)) > 1:
        raise SAYS("the ranks disagree", choices=", ".join(map(shown, chosen)), where=where)


def why(
    notes: list[dict],
    plan: Machine,
    right: int | None,
    where: str,
    idea: str | None,
    always: set,
) -> Finding:
    """What was chosen on a machine and what came of it; then the idea that would choose so."""
    chosen = notes[0]["chosen"]
    if chosen is None:
        return explained(idea or "gave up", f"None was returned {where}, and a setting fits.")
    if always == {len(SETTINGS) - 1}:
        return SAYS("further than needed #1")
    for rank, one in enumerate(notes):
        for tier in TIERS:
            held, room = one["holds"][tier], plan.rooms[rank][tier]
            if held > room:
                done = "counted" if plan.large else "run"
                text = (
                    f"{shown(chosen)} was {done} {where}: rank {rank} held {held:,} bytes on its "
                    f"{tier} and had room for {room:,}."
                )
                general = "it does not shard" if always == {0} else "does not fit"
                return explained(idea or general, text)
    if right is not None and plan.order.index(chosen) > plan.order.index(right):
        text = (
            f"{shown(chosen)} was tried {where}, and it fits. So does {shown(right)}, which comes "
            "before it and is faster."
        )
        return explained(idea or "further than needed #2", text)
    return explained(idea or "wrong setting", f"{shown(chosen)} was chosen {where}.")


def explained(entry: str, text: str) -> Finding:
    """What came of a choice, and then the words of an entry."""
    name, more = SAYS.of(entry)
    return Finding(name, f"{text} {more}")


def shown(chosen: int | None) -> str:
    """A setting in words."""
    if chosen is None:
        return "None"
    one = SETTINGS[chosen]
    away = one.get("offload")
    more = "" if away is None else " with both away" if isinstance(away, dict) else " with cpu"
    return f"stage {one['stage']}{more}"


PICK = Exercise(judge=judge_pick, **SAYS.about)
