"""The checks of lesson 12 that run engines: right answers pass, mistakes go by their names.

Every answer here runs on the judge's real ranks, and what it chose is trained and measured there.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.likeliest import likeliest

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "12_offload"

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
LADDER = '''
from course_lib.memory import OutOfMemory


def walk_ladder(attempt, rows):
    """Down, then up."""
    now = dict(rows=rows, accumulate=1, recompute=False, stage=0, offload=None)
    both = {"optimizer": "cpu", "parameters": "cpu"}
    rungs = [
        dict(rows=1, accumulate=rows), dict(recompute=True), dict(stage=2), dict(offload="cpu"),
        dict(stage=3, offload=None), dict(offload="cpu"), dict(offload=both),
    ]
    while True:
        try:
            attempt(**now)
            break
        except OutOfMemory:
            if not rungs:
                return None
            now.update(rungs.pop(0))
    while now["rows"] < rows:
        up = dict(now, rows=2 * now["rows"], accumulate=now["accumulate"] // 2)
        try:
            attempt(**up)
        except OutOfMemory:
            break
        now = up
    return now
'''
# Another style: an answer that goes by recursion.
BY_RECURSION = """
from course_lib.memory import OutOfMemory

RUNGS = (
    {"accumulate": None, "rows": 1}, {"recompute": True}, {"stage": 2}, {"offload": "cpu"},
    {"offload": None, "stage": 3}, {"offload": "cpu"},
    {"offload": {"optimizer": "cpu", "parameters": "cpu"}},
)


def fits(attempt, one):
    try:
        return attempt(**one) >= 0
    except OutOfMemory:
        return False


def up(attempt, one):
    k = one["accumulate"]
    more = {**one, "rows": one["rows"] * 2, "accumulate": k // 2}
    return up(attempt, more) if k > 1 and fits(attempt, more) else one


def down(attempt, one, rungs, rows):
    if fits(attempt, one):
        return up(attempt, one)
    if not rungs:
        return None
    change = {k: rows if k == "accumulate" else v for k, v in rungs[0].items()}
    return down(attempt, {**one, **change}, rungs[1:], rows)


def walk_ladder(attempt, rows):
    start = {"rows": rows, "accumulate": 1, "recompute": False, "stage": 0, "offload": None}
    return down(attempt, start, RUNGS, rows)
"""


def changed(text: str, *changes: tuple[str, str]) -> str:
    """A right answer with a mistake in it."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


AGREE = "        dist.all_reduce(short, group=group)\n"
WRONG_PICK = {
    "never cut": (
        "def pick_stage(config, settings, room, group):\n    return settings[0]\n",
        "it does not shard",
    ),
    "the last": (
        "def pick_stage(config, settings, room, group):\n    return settings[-1]\n",
        "further than needed",
    ),
    "between steps": (changed(PICK, ("alive=True", "alive=False")), "gradients forgotten"),
    "no host": (changed(PICK, ('("device", "host")', '("device",)')), "the host forgotten"),
    "all tiers in one": (
        changed(
            PICK,
            (
                'any(needs[tier] > room[tier] for tier in ("device", "host"))',
                "sum(needs.values()) > sum(room.values())",
            ),
        ),
        "one sum for all tiers",
    ),
    "nobody asked": (changed(PICK, (AGREE, "")), "the ranks disagree"),
    "rank 0 decides": (
        changed(PICK, (AGREE, "        dist.broadcast(short, group=group, group_src=0)\n")),
        "one rank's room",
    ),
    "a majority": (
        changed(PICK, ("if short == 0:", "if short <= n / 2:")),
        "it does not shard",  # most ranks have room for everything
    ),
    "sixteen bytes": (
        changed(
            PICK,
            (
                "needs = states(config, n=n, rank=me, **one).by_tier(alive=True)",
                "psi = states(config, stage=0, n=1).partition.numel\n"
                "        k = one['stage']\n"
                "        whole = {0: 16, 1: 8 + 8 / n, 2: 4 + 12 / n, 3: 16 / n}[k] * psi\n"
                "        away = one.get('offload')\n"
                "        stays = (4 if k < 3 else 4 / n) * psi if away == 'cpu' else 0\n"
                "        stays = whole if away is None else stays\n"
                "        needs = {'device': stays, 'host': whole - stays}",
            ),
        ),
        "sixteen bytes a number",
    ),
    "of the world": (
        changed(PICK, ("group.size(), group.rank()", "dist.get_world_size(), dist.get_rank()")),
        "not of the group",
    ),
    "a number": (changed(PICK, ("return one", "return one['stage']")), "not one of the settings"),
    "with more in it": (
        changed(PICK, ("return one", "one['clip'] = 1.0; return one")),
        "input changed",
    ),
    "never none": (changed(PICK, ("return None", "return settings[-1]")), "does not fit"),
    "gives up": (
        changed(PICK, ("            return one\n", "            return None\n")),
        "gave up",
    ),
}

DOWN = "            now.update(rungs.pop(0))\n"
WRONG_LADDER = {
    "never cut": (
        "def walk_ladder(attempt, rows):\n"
        "    return dict(rows=1, accumulate=rows, recompute=True, stage=0, offload=None)\n",
        "it does not shard",
    ),
    "to the bottom": (
        "def walk_ladder(attempt, rows):\n"
        '    both = {"optimizer": "cpu", "parameters": "cpu"}\n'
        "    return dict(rows=1, accumulate=rows, recompute=True, stage=3, offload=both)\n",
        "further down than needed",
    ),
    "another batch": (
        changed(
            LADDER,
            ("dict(rows=1, accumulate=rows)", "dict(rows=1)"),
            ('    while now["rows"] < rows:', "    while False:"),
        ),
        "another batch",
    ),
    "no recomputation": (changed(LADDER, (" dict(recompute=True),", "")), "a rung left out"),
    "stage 3 at once": (
        changed(LADDER, (' dict(stage=2), dict(offload="cpu"),\n', "\n")),
        "further down than needed",
    ),
    "not back up": (
        changed(LADDER, ('    while now["rows"] < rows:', "    while False:")),
        "not back up",
    ),
    "one row too many": (
        changed(
            LADDER,
            ("            break\n        now = up", "            return up\n        now = up"),
        ),
        "does not fit",
    ),
    "not caught": (
        "def walk_ladder(attempt, rows):\n"
        "    now = dict(rows=rows, accumulate=1, recompute=False, stage=0, offload=None)\n"
        "    attempt(**now)\n    return now\n",
        "gave up at the first",
    ),
    "nothing": (changed(LADDER, ("    return now\n", "    return\n")), "nothing returned"),
}
RIGHT = {"pick_stage": (PICK, BY_ROOMS), "walk_ladder": (LADDER, BY_RECURSION)}


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, {name: source})


def reference(name: str) -> str:
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    source = next(c.source for c in cells if f"def {name}" in c.source)
    return source.split("\n", 1)[1]  # without the magic's line


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_are_right_whatever_their_style(desk, name):
    for source in RIGHT[name]:
        verdict = judged(desk, name, source)
        assert verdict.outcome == "right", str(verdict)
        assert verdict.points == frame.find(name).points


@pytest.mark.slow  # its notebook, which each run executes, says the same
@pytest.mark.parametrize("name", RIGHT)
def test_the_reference_is_right(desk, name):
    assert judged(desk, name, reference(name)).outcome == "right"


@pytest.mark.parametrize("mistake", likeliest(WRONG_PICK))
def test_a_wrong_choice_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_PICK[mistake]
    verdict = judged(desk, "pick_stage", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize("mistake", likeliest(WRONG_LADDER))
def test_a_wrong_walk_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_LADDER[mistake]
    verdict = judged(desk, "walk_ladder", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize("name", RIGHT)
def test_a_blank_is_not_attempted(desk, name):
    verdict = judged(desk, name, f'def {name}(*given):\n    """Later."""\n')
    assert verdict.outcome == "not attempted"
