"""Machines for `pick_stage`: small machines for runs, large machines for counts, and the choice of
each known wrong idea. Lesson 12."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from course_lessons.lesson_12 import runs
from course_lib.estimate import per_parameter, states
from course_lib.gpt import Config

# From the fastest to the one with the least memory on the device.
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
Room = dict[str, float]
Needs = list[list[Room]]  # [setting][rank]
ORDER, ANOTHER_ORDER = tuple(range(len(SETTINGS))), (3, 4, 0, 6, 5, 2, 1)
# (the setting that fits exactly on the tight rank, the shortage there in bytes or as a part)
MACHINES = ((2, 0), (2, 1), (4, 0), (3, 0), (0, 0), (2, 0.05), (6, 1))


class Machine(NamedTuple):
    """The memory of every rank, the order of the settings, and the size of the model."""

    rooms: list[Room]
    order: tuple[int, ...] = ORDER
    large: bool = False


def config_of(seed: int, *, large: bool) -> Config:
    """Return a config; the large config's bytes exceed float32's exact integers."""
    if large:
        return Config.gpt2(hidden=7168, layers=2, heads=56, vocabulary=50_261, length=64)
    return runs.config_of(seed)


def needs(
    config: Config, n: int, *, alive: bool = True, settings: Sequence = SETTINGS, **how
) -> Needs:
    def of(rank: int, setting: dict) -> Room:
        tiers = states(config, n=n, rank=rank, **setting, **how).by_tier(alive=alive)
        return {tier: tiers[tier] for tier in TIERS}

    return [[of(rank, setting) for rank in range(n)] for setting in settings]


def fit(need: Needs, rooms: Sequence[Room], setting: int, tiers: Sequence[str] = TIERS):
    """Return True or False for each rank, depending on whether the setting fits there."""
    pairs = zip(need[setting], rooms, strict=True)
    return [all(one[tier] <= room[tier] for tier in tiers) for one, room in pairs]


def first(need: Needs, rooms: Sequence[Room], tiers: Sequence[str], order: Sequence[int]):
    """Return the first setting that fits on every rank, or None if there is none."""
    return next((i for i in order if all(fit(need, rooms, i, tiers))), None)


def machines(need: Sequence[Needs]) -> list[Machine]:
    """Return machines for the needs of both models; the last three are for the large model."""
    small, large = need
    n, closed = len(small[0]), closed_form(config_of(0, large=True), 1)
    padded = int(large[0][0]["device"] - closed[0][0]["device"])
    found = [_tight(small, (k + 1) % n, *one) for k, one in enumerate(MACHINES)]
    found += _more(small)
    of_large = [_tight(large, n - 1, *one) for one in ((2, 0), (2, 1), (0, padded + 1))]
    return found + [one._replace(large=True) for one in of_large]


def _tight(need: Needs, rank: int, setting: int, missing: float) -> Machine:
    """Return a machine with one rank whose memory is a setting's bytes minus `missing`."""
    room, rooms = dict(need[setting][rank]), _much(need)
    short = "host" if setting == 6 else "device"  # the last one stores nothing on the device
    room[short] -= math.ceil(missing * room[short]) if isinstance(missing, float) else missing
    rooms[rank] = room
    return Machine(rooms)


def _much(need: Needs) -> list[Room]:
    return [dict.fromkeys(TIERS, 20 * need[0][0]["device"]) for _ in need[0]]


def _more(need: Needs) -> Iterator[Machine]:
    rooms = _much(need)
    # Rank 0 has no host and the last rank has little device memory, so settings after a rank's
    # first fit need not fit there.
    rooms[0]["host"] = 0
    rooms[-1] = {tier: max(need[k][-1][tier] for k in (3, 4)) * 51 // 50 for tier in TIERS}
    yield Machine(rooms)
    yield Machine(need[1], ANOTHER_ORDER)
    yield Machine([need[2 if rank else 1][rank] for rank in range(len(rooms))])
    rooms = _much(need)
    for rank in (0, -1):  # stage 0 counts its gradients between steps too
        rooms[rank]["device"] = need[0][rank]["device"] * 19 // 20
    yield Machine(rooms)


def closed_form(config: Config, n: int) -> Needs:
    """Return each setting's needs as bytes per parameter times the number of parameters."""
    psi = states(config, stage=0, n=1).partition.numel
    rough = []
    for one in SETTINGS:
        stage, away = one["stage"], one.get("offload")
        whole = per_parameter(stage, n, alive=True)
        kept = whole if away is None else 0.0 if away == runs.BOTH else 4 if stage < 3 else 4 / n
        rough.append([{"device": kept * psi, "host": (whole - kept) * psi}] * n)
    return rough


def readings(machine: Machine, config: Config, need: Needs) -> list[tuple[str, int | None]]:
    """Return each known wrong idea's entry and choice, the number of a setting or None."""
    rooms, order, n = machine.rooms, machine.order, len(machine.rooms)
    least = {tier: min(room[tier] for room in rooms) for tier in TIERS}
    mean = {tier: sum(room[tier] for room in rooms) / n for tier in TIERS}
    both = [[{"all": sum(one.values())} for one in ranks] for ranks in need]
    sums = [{"all": sum(room.values())} for room in rooms]

    def choice(need: Needs = need, rooms: Sequence[Room] = rooms, tiers: Sequence[str] = TIERS):
        return first(need, rooms, tiers, order)

    def each(change: Callable[[float], float]) -> list[Room]:
        return [{tier: change(room[tier]) for tier in TIERS} for room in rooms]

    def where(enough: Callable[[list[bool]], bool]) -> int | None:
        """Return the first setting for which `enough` accepts the list of ranks that it fits."""
        return next((i for i in order if enough(fit(need, rooms, i))), None)

    some_keys = [{k: v for k, v in one.items() if k != "persist"} for one in SETTINGS]
    firsts = [where(lambda fits, rank=rank: fits[rank]) for rank in range(n)]
    return [
        ("gradients forgotten", choice(needs(config, n, alive=False))),
        ("the host forgotten", choice(tiers=("device",))),
        ("the device forgotten", choice(tiers=("host",))),
        ("one sum for all tiers", choice(both, sums, ("all",))),
        ("sixteen bytes per parameter", choice(closed_form(config, n))),
        ("not to the byte", choice(rooms=each(lambda room: 1.002 * room))),
        ("not to the byte", choice(rooms=each(lambda room: room - 1))),
        ("rounded on the way", choice(rooms=each(lambda room: float(torch.tensor(float(room)))))),
        ("one rank's room", choice(rooms=[rooms[0]] * n)),
        ("one rank's room", firsts[0]),
        ("one rank is enough", where(any)),
        ("the least room", choice(rooms=[least] * n)),
        ("the mean room", choice(rooms=[mean] * n)),
        ("wrong optimizer", choice(needs(config, n, optimizer="sgd"))),
        ("wrong optimizer", choice(needs(config, n, optimizer="momentum"))),
        ("keys left out", choice(needs(config, n, settings=some_keys))),
        ("the last of the first ones", None if None in firsts else max(firsts, key=order.index)),
        ("wrong order", first(need, rooms, TIERS, ORDER)),
    ]
