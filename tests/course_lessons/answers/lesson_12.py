"""Answers to `pick_stage` of lesson 12: right ones, and likely wrong ones with their names."""

from __future__ import annotations

from functools import partial

from tests.course_lessons.answers import changed

PICK = """
import torch.distributed as dist
from course_lib.estimate import states


def pick_stage(config, settings, room, group):
    n, me = group.size(), group.rank()
    for one in settings:
        needs = states(config, n=n, rank=me, **one).by_tier(alive=True)
        short = torch.tensor(float(any(needs[tier] > room[tier] for tier in ("device", "host"))))
        dist.all_reduce(short, group=group)
        if short == 0:
            return one
    return None
"""
pick = partial(changed, PICK)
# Another style: every rank tells the others how many bytes it has, and counts for all of them.
BY_ROOMS = """
from course_lib.collectives import all_gather
from course_lib.estimate import states


def pick_stage(config, settings, room, group):
    mine = torch.tensor([[room["device"], room["host"]]])
    rooms = all_gather(mine, group).tolist()
    n = len(rooms)

    def fits(one):
        every = [states(config, n=n, rank=r, **one).by_tier(alive=True) for r in range(n)]
        return all(
            has["device"] <= device and has["host"] <= host
            for has, (device, host) in zip(every, rooms)
        )

    return next(filter(fits, settings), None)
"""
AGREE = "        dist.all_reduce(short, group=group)\n"
WRONG_PICK = {
    "two keys of a setting": (
        pick(("**one)", "stage=one['stage'], offload=one.get('offload'))")),
        "keys left out",
    ),
    "never cut": (
        "def pick_stage(config, settings, room, group):\n    return settings[0]\n",
        "it does not shard",
    ),
    "the last": (
        "def pick_stage(config, settings, room, group):\n    return settings[-1]\n",
        "further than needed",
    ),
    "between steps": (pick(("alive=True", "alive=False")), "gradients forgotten"),
    "no host": (pick(('("device", "host")', '("device",)')), "the host forgotten"),
    "all tiers in one": (
        pick(
            (
                'any(needs[tier] > room[tier] for tier in ("device", "host"))',
                "sum(needs.values()) > sum(room.values())",
            )
        ),
        "one sum for all tiers",
    ),
    "nothing sent": (pick((AGREE, "")), "the ranks disagree"),
    "rank 0 decides": (
        pick((AGREE, "        dist.broadcast(short, group=group, group_src=0)\n")),
        "one rank's room",
    ),
    "a majority": (
        pick(("if short == 0:", "if short <= n / 2:")),
        "it does not shard",  # most ranks have room for everything
    ),
    "sixteen bytes": (
        pick(
            (
                "needs = states(config, n=n, rank=me, **one).by_tier(alive=True)",
                "psi = states(config, stage=0, n=1).partition.numel\n"
                "        k = one['stage']\n"
                "        whole = {0: 16, 1: 8 + 8 / n, 2: 4 + 12 / n, 3: 16 / n}[k] * psi\n"
                "        away = one.get('offload')\n"
                "        stays = (4 if k < 3 else 4 / n) * psi if away == 'cpu' else 0\n"
                "        stays = whole if away is None else stays\n"
                "        needs = {'device': stays, 'host': whole - stays}",
            )
        ),
        "sixteen bytes per parameter",
    ),
    "of the world": (
        pick(("group.size(), group.rank()", "dist.get_world_size(), dist.get_rank()")),
        "uses world numbers",
    ),
    "a number": (pick(("return one", "return one['stage']")), "not one of the settings"),
    "with more in it": (pick(("return one", "one['clip'] = 1.0; return one")), "input changed"),
    "never none": (pick(("return None", "return settings[-1]")), "does not fit"),
    "gives up": (pick(("            return one\n", "            return None\n")), "gave up"),
    "not to the byte": (
        pick(("needs[tier] > room[tier]", "needs[tier] >= room[tier]")),
        "not to the byte",
    ),
    "a thousandth more": (
        pick(("needs[tier] > room[tier]", "needs[tier] > 1.001 * room[tier]")),
        "not to the byte",
    ),
    "one rank will do": (pick(("short == 0", "short < n")), "one rank is enough"),
    "each rank's first": (
        """
from course_lib.collectives import all_reduce
from course_lib.estimate import states


def pick_stage(config, settings, room, group):
    first = len(settings)
    for i, one in reversed([*enumerate(settings)]):
        needs = states(config, n=group.size(), rank=group.rank(), **one).by_tier(alive=True)
        if all(needs[tier] <= room[tier] for tier in room):
            first = i
    last = int(all_reduce(torch.tensor(first), group, "max"))
    return settings[last] if last < len(settings) else None
""",
        "the last of the first ones",
    ),
    "by the stages": (
        pick(("in settings:", "in sorted(settings, key=lambda one: one['stage']):")),
        "wrong order",
    ),
    "the least of all rooms": (
        pick(
            (
                "    for one in settings:",
                "    least = torch.tensor([room[tier] for tier in sorted(room)])\n"
                "    dist.all_reduce(least, dist.ReduceOp.MIN, group)\n"
                "    room = dict(zip(sorted(room), least.tolist()))\n"
                "    for one in settings:",
            )
        ),
        "the least room",
    ),
    "plain SGD": (pick(("rank=me, **one", "rank=me, optimizer='sgd', **one")), "wrong optimizer"),
    "remembered": (
        pick(
            ("\n\ndef pick", "\n\nknown = {}\n\n\ndef pick"),
            (
                "    n, me =",
                "    if str(config) in known:\n        return known[str(config)]\n    n, me =",
            ),
            (
                "            return one\n",
                "            known[str(config)] = one\n            return one\n",
            ),
        ),
        "kept from an earlier machine",
    ),
    "rooms in float32": (
        changed(
            BY_ROOMS,
            (
                'mine = torch.tensor([[room["device"], room["host"]]])',
                'mine = torch.tensor([[float(room["device"]), float(room["host"])]])',
            ),
        ),
        "rounded on the way",
    ),
}

RIGHT: dict = {"pick_stage": {"one after the other": PICK, "rooms around": BY_ROOMS}}
WRONG: dict = {"pick_stage": WRONG_PICK}
