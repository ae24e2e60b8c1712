"""`pick_stage` of lesson 12: the fastest setting whose states fit on every rank of a machine. On
small machines the chosen engine is trained and its memory is measured."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import product

import torch
import torch.distributed as dist

from course_classroom.judge import bench, frame, looking, words
from course_classroom.judge.answer import Answer
from course_classroom.judge.judge import Judge, on
from course_lessons.lesson_12 import pick_machines as park
from course_lessons.lesson_12 import runs
from course_lessons.lesson_12.pick_machines import SETTINGS, TIERS
from course_lib import zero
from course_lib.collectives import all_gather
from course_lib.gpt import Config

SMALL = 2048  # bytes: a few flags, but not a model
SAYS = words.Page(__file__, "pick_stage")
FORM = {
    "input changed": lambda one: one["changed"],
    "not one of the settings": lambda one: one["chosen"] == "strange",
}


def run(function: Callable, group: dist.ProcessGroup, seed: int, plans: Sequence[dict]) -> list:
    """Return the answer's choice on every machine, and that setting's memory on this rank."""
    mesh, notes, measured = runs.mesh_of(group), [], {}
    for machine in (park.Machine(**plan) for plan in plans):
        config, room = park.config_of(seed, large=machine.large), machine.rooms[group.rank()]
        settings = [SETTINGS[i] for i in machine.order]
        given, own = copy.deepcopy(settings), dict(room)
        out, facts = bench.watched(lambda c=config, g=given, o=own: function(c, g, o, group))
        chosen = next((i for i, one in enumerate(SETTINGS) if out == one), "strange")
        number = chosen if isinstance(chosen, int) else -1
        agreed = set(all_gather(torch.tensor([number]), group).tolist()) == {number}
        if agreed and not machine.large and number >= 0 and number not in measured:
            measured[number] = _holds(config, mesh, number)
        note = {
            "kind": type(out).__name__,
            "chosen": None if out is None else chosen,
            "bytes": facts["bytes"],
            "holds": measured.get(number),
            "changed": own != room or given != settings,
        }
        notes.append(note)
    return notes


def _holds(config: Config, mesh, chosen: int) -> dict[str, int]:
    """Measure the engine's memory by tier while gradients are alive."""
    settings = {k: v for k, v in SETTINGS[chosen].items() if k != "persist"}
    with runs.engine_of(config, mesh, **settings) as engine:
        runs.backward(engine, config, 0, 1)
        engine.step()
        runs.backward(engine, config, 1, 1)
        found = zero.holdings(engine)
    return {tier: math.ceil(found[tier]) for tier in TIERS}


def judge_pick(answer: Answer, judge: Judge) -> None:
    """Try machines on three ranks, then on two ranks that are not the first two."""
    judge.take(answer, __name__, runs.__name__)
    seed = looking.fresh_seed() % 1000
    for members in (looking.THREE, looking.TWO):
        n, when = len(members), on(members)
        configs = [park.config_of(seed, large=large) for large in (False, True)]
        need = [park.needs(config, n) for config in configs]
        plans = park.machines(need)
        right = [park.first(need[plan.large], plan.rooms, TIERS, plan.order) for plan in plans]
        data = [plan._asdict() for plan in plans]
        reports = judge.trial(answer, run, seed, data, members=members, when=when)
        choices = [[note["chosen"] for note in report] for report in reports]
        idea, always = None, set(choices[0][: len(park.MACHINES)])
        if any(chosen != right for chosen in choices):
            read = [park.readings(p, configs[p.large], need[p.large]) for p in plans]
            ways = [zip(*pairs, strict=True) for pairs in zip(*read, strict=True)]
            idea = next((entry for (entry, *_), way in ways if list(way) == choices[0]), None)
        for k, (plan, notes) in enumerate(zip(plans, zip(*reports, strict=True), strict=True)):
            where, chosen = f"{when}, on machine {k + 1}", choices[0][k]
            SAYS.refuse_each(notes, FORM, where=where)
            each = [one["chosen"] for one in notes]
            told = ", ".join(map(shown, each))
            SAYS.refuse({"the ranks disagree": len(set(each)) > 1}, choices=told, where=where)
            if chosen != right[k]:
                kept = k and always == {right[0]}
                SAYS.refuse({"kept from an earlier machine": kept}, got=shown(chosen), where=where)
                SAYS.refuse({"further than needed #1": always == {len(SETTINGS) - 1}})
                held = need[True][chosen] if plan.large and chosen is not None else None
                held = held or [note["holds"] for note in notes]
                entry, head = what_came(chosen, right[k], plan, held, where)
                entry = "it does not shard" if entry == "does not fit" and always == {0} else entry
                raise SAYS(idea or entry, head=head)
            sent = {"too much sent": lambda one: one["bytes"] > SMALL}
            SAYS.refuse_each(notes, sent, where=where)


def what_came(
    chosen: int | None, right: int | None, plan: park.Machine, held: list[dict], where: str
) -> tuple[str, str]:
    """Return the entry for a wrong choice that no idea explains, and its result in words."""
    if chosen is None:
        return "gave up", f"Your function returned None ({where}), but a setting fits."
    for rank, tier in product(range(len(held)), TIERS):
        took, room = held[rank][tier], plan.rooms[rank][tier]
        if took > room:
            done = f"The check {'counted the bytes of' if plan.large else 'ran'} {shown(chosen)}"
            held_there = f"rank {rank} held {took:,} bytes on its {tier}, with room for {room:,}"
            return "does not fit", f"{done} ({where}), but {held_there}."
    if right is not None and plan.order.index(chosen) > plan.order.index(right):
        return "further than needed #2", (
            f"Your function chose {shown(chosen)} ({where}). It fits, but so does {shown(right)}, "
            "which is earlier in the list and faster."
        )
    return "wrong setting", f"Your function chose {shown(chosen)} ({where})."


def shown(chosen: int | None) -> str:
    """Describe the setting with this number."""
    if chosen is None:
        return "None"
    one = SETTINGS[chosen]
    away = one.get("offload")
    what = "states and parameters" if isinstance(away, dict) else "states"
    return f"stage {one['stage']}" + (f" with {what} on the CPU" if away else "")


PICK = frame.Exercise(judge=judge_pick, **SAYS.about)
