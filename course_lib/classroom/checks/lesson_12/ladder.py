"""`walk_ladder` of lesson 12: one remedy after another until a step fits, and then back up in rows.

What the answer settles on is held against what was measured on the judge's ranks, and against the
first rung that fits.
"""

from __future__ import annotations

import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_12.ladder_trial import MOST, ROWS, rung_of
from course_lib.classroom.checks.lesson_12.ready import take
from course_lib.classroom.crew import START_LIMIT

NO_SHARDING = "Stage 0 runs, on a large enough machine, and every rank holds everything"


def judge_ladder(answer: Answer, judge: Judge) -> None:
    """Five budgets on two ranks, then on three."""
    take(answer, judge, "ladder_trial")
    seed = int.from_bytes(os.urandom(2), "big")
    for members in ([1, 2], [0, 1, 2]):
        when, part = on(members), 'bench.part("lesson_12.ladder_trial")'
        # Each setting is trained before the answer's time begins: a busy machine takes a while.
        measured = f"__needs__ = {part}.measure({seed}, {members})"
        judge.everywhere(lambda rank, code=measured: code, START_LIMIT)
        call = f"{part}.run(walk_ladder, {seed}, __needs__, __trial__)"
        reports = judge.trial(answer, call, members, when)
        for k in range(len(reports[0]["walks"])):
            told = [report["walks"][k] for report in reports]
            limit = told[0]["limit"]
            _look(told, f"{when}, with a budget of {limit:,} bytes")


def _look(told: list[dict], where: str) -> None:
    one = told[0]
    if one["right"] is None:
        if one["raised"]:
            raise Finding(
                "out of memory",
                f"It ended with OutOfMemory {where}, where nothing fits. Return None then.",
            )
        if one["settings"] is not None or one["kind"] != "NoneType":
            raise Finding(
                "does not fit", f"No rung fits {where}, and it returned one. Return None then."
            )
        return
    if one["raised"]:
        raise Finding(
            "gave up at the first",
            f"It ended with OutOfMemory {where}. A rung that does not fit raises: catch that, and "
            "try the next one.",
        )
    refuse_none(told, where, "the settings that fit")
    if one["settings"] is None:
        raise Finding(
            "not settings",
            f"A {one['kind']} came back {where}; return a dict with the five settings that fit.",
        )
    _look_at_settings(one, where)
    _look_at_the_way(one, where)


def _look_at_settings(one: dict, where: str) -> None:
    got, right = one["settings"], one["right"]
    try:
        batch = got["rows"] * got["accumulate"]
    except TypeError:
        raise Finding(
            "not settings", f"{got} came back {where}: rows and accumulate have to be integers."
        ) from None
    if batch != ROWS:
        raise Finding(
            "another batch",
            f"{got['rows']} rows, {got['accumulate']} times, make a batch of {batch} {where}; it "
            f"has {ROWS}. That trains another model: fewer rows need more micro-batches.",
        )
    if one["needs"] is None:
        raise Finding("not settings", f"{got} came back {where}: no engine takes these settings.")
    if one["needs"] > one["limit"]:
        text = f"{_shown(got)} was run {where}, and a rank held {one['needs']:,}."
        if got["stage"] == 0 and right["stage"]:
            raise Finding("it does not shard", f"{text} {NO_SHARDING}.")
        raise Finding("does not fit", text)
    if got == right:
        return
    same = [k for k in ("recompute", "stage", "offload") if got[k] == right[k]]
    if len(same) == 3:
        raise Finding(
            "not back up",
            f"{_shown(got)} fits {where}, and so do {right['rows']} rows at once. Once a step "
            "fits, raise the rows again as far as they go: fewer, larger micro-batches are faster.",
        )
    if right["recompute"] and not got["recompute"]:
        raise Finding(
            "a rung left out",
            f"{_shown(got)} fits {where}, and leaves out recomputation, which comes before the "
            "stages: each rung stands on those before it.",
        )
    raise Finding(
        "further down than needed",
        f"{_shown(got)} was run {where}, and it fits. So does {_shown(right)}, which is faster: "
        "stop at the first rung that fits.",
    )


def _look_at_the_way(one: dict, where: str) -> None:
    rungs, stop = one["rungs"], rung_of(one["right"])
    if None in rungs:
        raise Finding(
            "beside the ladder",
            f"It came to the right settings {where}, and on its way tried some that are on no "
            "rung: each rung changes what it names and keeps the rest.",
        )
    if any(rung > stop for rung in rungs):
        raise Finding(
            "went on after it fit",
            f"It came to the right settings {where}, and tried rungs below them too. Each attempt "
            "is a run on the whole machine: stop at the first that fits.",
        )
    if len(one["tried"]) > MOST:
        raise Finding(
            "too many attempts",
            f"It took {len(one['tried'])} attempts {where}, some of them twice; "
            f"{len(one['short'])} do.",
        )


def _shown(settings: dict) -> str:
    away = settings["offload"]
    more = "" if away is None else ", both away" if isinstance(away, dict) else ", states away"
    again = ", recomputing" if settings["recompute"] else ""
    rows = f"{settings['rows']} row{'s'[: settings['rows'] != 1]}"
    return f"Stage {settings['stage']}{more}{again}, {rows} {settings['accumulate']} times"


LADDER = Exercise(
    name="walk_ladder",
    title="Down the ladder",
    points=4,
    judge=judge_ladder,
    when_right=(
        "Under five budgets, on two ranks and on three, it went down rung by rung, stopped at the "
        "first that fits, and went up again in rows as far as they go; where nothing fits it said "
        "so. Every attempt was a step of a real engine."
    ),
    hints=(
        "Keep one dict of settings. A rung changes what it names in it, and the rest stays.",
        "try: attempt(**settings) … except OutOfMemory: the next rung. Where it does not raise, "
        "leave the loop.",
        "Back up: twice the rows, half the micro-batches, as long as there is more than one. The "
        "last that did not raise is the answer.",
    ),
)
