"""What runs on the judge's ranks for `pick_stage`: machines whose ranks have unequal room.

On each small one, the answer's choice is made an engine, trained, and what it holds is measured.
Lesson 12.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from course_lib import zero
from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_12 import runs
from course_lib.classroom.checks.lesson_12.pick_machines import (
    SETTINGS,
    TIERS,
    Machine,
    config_of,
)
from course_lib.estimate import states
from course_lib.gpt import Config


def warm() -> None:
    states(runs.config_of(0), stage=1, n=2)


def run(function: Callable, group: dist.ProcessGroup, seed: int, plans: Sequence[dict]) -> dict:
    """The answer's choice on every machine, and what that setting really holds on this rank."""
    mesh, notes, measured = runs.mesh_of(group), [], {}
    for machine in (Machine(**plan) for plan in plans):
        config, room = config_of(seed, large=machine.large), machine.rooms[group.rank()]
        settings = [SETTINGS[i] for i in machine.order]
        given, own = copy.deepcopy(settings), dict(room)
        out, facts = bench.watched(lambda c=config, g=given, o=own: function(c, g, o, group))
        chosen = _index(out)
        number = chosen if isinstance(chosen, int) else -1
        if _agreed(number, group) and not machine.large and number >= 0 and number not in measured:
            measured[number] = _holds(config, mesh, number)
        note = {"kind": type(out).__name__, "chosen": chosen, "bytes": facts["bytes"]}
        note["holds"] = None if machine.large else measured.get(number)
        notes.append({**note, "changed": own != room or given != settings})
    return {"machines": notes}


def _index(out: object) -> int | str | None:
    """Which of the settings came back: its number, None for none of them, or "strange"."""
    if out is None:
        return None
    return next((i for i, one in enumerate(SETTINGS) if out == one), "strange")


def _agreed(chosen: int, group: dist.ProcessGroup) -> bool:
    """All ranks of the group ask this."""
    numbers = torch.tensor([chosen, -chosen])
    dist.all_reduce(numbers, dist.ReduceOp.MAX, group)
    return bool(numbers.sum() == 0)


def _holds(config: Config, mesh, chosen: int) -> dict[str, int]:
    """With gradients alive, by the meter."""
    settings = {k: v for k, v in SETTINGS[chosen].items() if k != "persist"}
    with runs.engine_of(config, mesh, **settings) as engine:
        runs.backward(engine, config, 0, 1)
        engine.step()
        runs.backward(engine, config, 1, 1)
        found = zero.holdings(engine)
    return {tier: math.ceil(found[tier]) for tier in TIERS}
