"""Answers to `walk_ladder` of lesson 12: right ones, and likely wrong ones with their names."""

from __future__ import annotations

from functools import partial

from tests.course_lessons.answers import changed

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
ladder = partial(changed, LADDER)
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

UP = '    while now["rows"] < rows:'
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
    "wrong batch": (
        ladder(("dict(rows=1, accumulate=rows)", "dict(rows=1)"), (UP, "    while False:")),
        "wrong batch",
    ),
    "no recomputation": (ladder((" dict(recompute=True),", "")), "a rung left out"),
    "ends one rung early": (ladder((" dict(offload=both),", "")), "a rung left out"),
    "stage 2 on the host left out": (
        ladder(('dict(stage=2), dict(offload="cpu"),', "dict(stage=2),")),
        "a rung left out",
    ),
    "stage 1 too": (
        ladder(("dict(stage=2),", "dict(stage=1), dict(stage=2),")),
        "not on the ladder",
    ),
    "stage 3 at once": (
        ladder((' dict(stage=2), dict(offload="cpu"),\n', "\n")),
        "further down than needed",
    ),
    "not back up": (ladder((UP, "    while False:")), "not back up"),
    "one row too many": (
        ladder(("            break\n        now = up", "            return up\n        now = up")),
        "does not fit",
    ),
    "not caught": (
        "def walk_ladder(attempt, rows):\n"
        "    now = dict(rows=rows, accumulate=1, recompute=False, stage=0, offload=None)\n"
        "    attempt(**now)\n    return now\n",
        "gave up at the first",
    ),
    "nothing": (ladder(("    return now\n", "    return\n")), "nothing returned"),
    "up once": (ladder((UP, "    for _ in range(rows > now['rows']):")), "not twice as many"),
    "up from the top": (
        ladder(
            (
                'dict(now, rows=2 * now["rows"], accumulate=now["accumulate"] // 2)',
                'dict(now, rows=rows, accumulate=1) if now["accumulate"] == rows else dict(\n'
                '            now, rows=2 * now["rows"], accumulate=now["accumulate"] // 2)',
            )
        ),
        "not back up",
    ),
    "past the batch": (
        ladder(
            (UP, "    while True:"),
            ('accumulate=now["accumulate"] // 2', 'accumulate=max(1, now["accumulate"] // 2)'),
        ),
        "wrong batch",
    ),
    "begins with one row": (
        ladder(
            ("dict(rows=rows, accumulate=1, recompute", "dict(rows=1, accumulate=rows, recompute"),
            ("dict(rows=1, accumulate=rows), ", ""),
        ),
        "a rung left out",
    ),
    "half the rows each time": (
        ladder(
            (
                "dict(rows=1, accumulate=rows)",
                "*[dict(rows=rows >> k, accumulate=1 << k) for k in range(1, rows.bit_length())]",
            )
        ),
        "rows step by step",
    ),
    "stage 3 keeps the host": (
        ladder(("dict(stage=3, offload=None)", "dict(stage=3)")),
        "a rung left out",
    ),
    "recomputation first": (
        ladder(
            (
                "dict(rows=1, accumulate=rows), dict(recompute=True)",
                "dict(recompute=True), dict(rows=1, accumulate=rows)",
            )
        ),
        "a rung left out",
    ),
    "the last one again": (
        ladder(("    return now\n", "    attempt(**now)\n    return now\n")),
        "too many attempts",
    ),
    "failures remembered": (
        ladder(
            ("\n\ndef walk", "\n\nfailed = []\n\n\ndef walk"),
            (
                "            attempt(**now)\n            break",
                "            if now in failed:\n"
                "                raise OutOfMemory('device', 1, 1, 1, 'a step')\n"
                "            attempt(**now)\n            break",
            ),
            (
                "            if not rungs:",
                "            failed.append(dict(now))\n            if not rungs:",
            ),
        ),
        "further down than needed",
    ),
}

RIGHT: dict = {"walk_ladder": {"a loop": LADDER, "recursion": BY_RECURSION}}
WRONG: dict = {"walk_ladder": WRONG_LADDER}
