"""What runs on the judge's ranks for `pick_stage`: machines whose ranks have unequal room.

On each, the answer's choice is made an engine, trained, and what it holds is measured. Lesson 12.
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
from course_lib.estimate import per_parameter, states
from course_lib.gpt import Config

# From the fastest to the one that keeps least on the device.
SETTINGS = (
    {"stage": 0},
    {"stage": 1},
    {"stage": 2},
    {"stage": 2, "offload": "cpu"},
    {"stage": 3, "persist": 0},
    {"stage": 3, "persist": 0, "offload": "cpu"},
    {"stage": 3, "persist": 0, "offload": runs.BOTH},
)
TIERS = ("device", "host")
Needs = list[list[dict[str, int]]]  # [setting][rank]
# (which setting fits exactly on the tight rank; what is missing there: bytes, or a part of all)
MACHINES = ((2, 0), (2, 1), (4, 0), (3, 0), (0, 0), (2, 0.05), (6, 1))


def warm() -> None:
    states(runs.config_of(0), stage=1, n=2)


def needs(config: Config, n: int, *, alive: bool = True) -> Needs:
    return [
        [states(config, n=n, rank=r, **one).by_tier(alive=alive) for r in range(n)]
        for one in SETTINGS
    ]


def first(need: Needs, rooms: Sequence[dict[str, int]], tiers: Sequence[str] = TIERS) -> int | None:
    """The first setting that fits on every rank; None where none does."""
    for i, ranks in enumerate(need):
        pairs = zip(ranks, rooms, strict=True)
        if all(one[tier] <= room[tier] for one, room in pairs for tier in tiers):
            return i
    return None


def machines(need: Needs, n: int) -> list[list[dict[str, int]]]:
    """Of each machine the room of every rank; one of them is tight."""
    found = []
    for number, (t, missing) in enumerate(MACHINES):
        tight = (number + 1) % n
        rooms = [dict.fromkeys(TIERS, 20 * need[0][0]["device"]) for _ in range(n)]
        rooms[tight] = {tier: need[t][tight][tier] for tier in TIERS}
        short = "host" if t == 6 else "device"  # the last one keeps nothing on the device
        part = math.ceil(missing * rooms[tight][short]) if isinstance(missing, float) else missing
        rooms[tight][short] -= part
        found.append(rooms)
    return found


def readings(config: Config, need: Needs, rooms: list[dict[str, int]]) -> dict[str, int | None]:
    """What each known wrong idea would choose."""
    n = len(rooms)
    psi = states(config, stage=0, n=1).partition.numel
    rough = []
    for one in SETTINGS:
        stage, away = one["stage"], one.get("offload")
        whole = per_parameter(stage, n, alive=True)
        kept = {None: whole, "cpu": 4 if stage < 3 else 4 / n}.get(_key(away), 0.0)
        rough.append([{"device": kept * psi, "host": (whole - kept) * psi}] * n)
    return {
        "gradients forgotten": first(needs(config, n, alive=False), rooms),
        "the host forgotten": first(need, rooms, ("device",)),
        "one sum for all tiers": _in_all(need, rooms),
        "sixteen bytes": first(rough, rooms),
        "rank 0's room": first(need, [rooms[0]] * n),
    }


def _key(away: object) -> object:
    return away if away is None or isinstance(away, str) else "both"


def _in_all(need: Needs, rooms: list[dict[str, int]]) -> int | None:
    both = [[{"all": sum(one[t] for t in TIERS)} for one in ranks] for ranks in need]
    return first(both, [{"all": sum(room.values())} for room in rooms], ("all",))


def run(function: Callable, seed: int, group: dist.ProcessGroup) -> dict:
    """The answer's choice on every machine, and what that setting really holds on this rank."""
    n, rank = group.size(), group.rank()
    config = runs.config_of(seed)
    need = needs(config, n)
    mesh = runs.mesh_of(group)
    told, measured = [], {}
    for rooms in machines(need, n):
        given, own = copy.deepcopy(list(SETTINGS)), dict(rooms[rank])
        out, facts = bench.watched(lambda g=given, o=own: function(config, g, o, group))
        chosen = _index(out)
        number = chosen if isinstance(chosen, int) else -1
        if _agreed(number, group) and number >= 0 and number not in measured:
            measured[number] = _holds(config, mesh, number)
        told.append(
            {
                "kind": type(out).__name__,
                "chosen": chosen,
                "right": first(need, rooms),
                "readings": readings(config, need, rooms),
                "room": rooms[rank],
                "holds": measured.get(chosen) if isinstance(chosen, int) else None,
                "bytes": facts["bytes"],
                "changed": own != rooms[rank] or given != list(SETTINGS),
            }
        )
    return {"machines": told}


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
