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
from course_lib.classroom.checks.words import Words

SMALL = 2048  # bytes: a few flags, and not a model
SAYS = Words("""
input changed: Your function changed what rank {rank} was given.
not one of the settings: Rank {rank} got a {kind} back {where}, which is none of the settings that
  it was given. Return one of them as it is, or None.
the ranks disagree: The ranks chose {choices} {where}. Each has looked at its own room alone, and an
  engine of two stages waits for ever. Tell each other what fits.
kept from another machine: {got} is right on machine 1, and was chosen {where} too. There is another
  room, or another model: keep nothing between calls.
too much sent: Rank {rank} sent {bytes} bytes {where}. One flag for each setting is enough.
further than needed #1: It is the last setting on every machine: the slowest, and the one that needs
  most of the host. Take the first that fits.
further than needed #2: Take the first that fits.
it does not shard: Stage 0 runs where there is room, and every rank holds everything.
gave up: Return the first that does.
does not fit: It has to fit on every rank, on each tier.
wrong setting: It is not the first that fits.
gradients forgotten: This counts what is held *between* steps. After a backward there are gradients
  as well.
the host forgotten: What is offloaded is stored on the host, and the host has its own room.
the device forgotten: The device has its own room as well.
one sum for all tiers: Room on the host is no room on the device: each tier is held to its own.
sixteen bytes a number: This takes the closed form, bytes times Ψ. A rank also holds padding, and a
  step counter for each part of a parameter; and where Ψ does not divide, ranks differ.
not to the byte #1: It is a little more than there is. Bytes are whole numbers: a setting fits if it
  needs as many as there are, or fewer.
not to the byte #2: It would fit to the byte. A setting fits if it needs as many bytes as there are,
  or fewer.
rounded on the way: The bytes went through float32, which counts in steps of 2,048 at 2 · 10¹⁰. Send
  whole numbers as int64.
one rank's room: It fits on the ranks with much room, and not on the rank with the least.
one rank is enough: It fits on *some* rank, and has to fit on every rank.
the least room: What one rank needs was held against another rank's room: the least of all, or rank
  0's needs on every rank. Each rank counts its own bytes (`rank=`), against its own room.
the mean room: This shares the room out over the ranks. A rank cannot use the room of another.
another optimizer: Training is with AdamW, which keeps two moments for each parameter, and counters.
the last of the first ones: Each rank found its own first setting, and you took the last of these.
  It need not fit on a rank whose first came earlier: another setting needs another tier.
another order: The settings come in the order of the list, whatever their stages: the first that
  fits.
""")


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
