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
from course_lib.classroom.checks.lesson_12 import ladder_trial as trial
from course_lib.classroom.checks.lesson_12.ladder_walk import batch_of, rung_of

WAY = "It came to the right settings"
NO_SHARDING = "Stage 0 runs, on a large enough machine, and every rank holds everything"


def judge_ladder(answer: Answer, judge: Judge) -> None:
    """Five budgets and machines of paper, on two ranks, then on three."""
    judge.take(answer, trial.__name__)
    seed = int.from_bytes(os.urandom(2), "big")
    for members in ([1, 2], [0, 1, 2]):
        when = on(members)
        # Each setting is trained before the answer's time begins: a busy machine takes a while.
        needs = judge.measured(trial.measure, seed, members)
        known = [needs[rank] for rank in members]
        reports = judge.trial(answer, trial.run, seed, known, members=members, when=when)
        for k, one in enumerate(reports[0]["walks"]):
            _look(
                [r["walks"][k] for r in reports], f"{when}, with a budget of {one['limit']:,} bytes"
            )
        for k, one in enumerate(reports[0]["paper"]):
            where = f"on a machine of paper with room for {one['limit']:,} bytes and a batch of "
            _look(
                [r["paper"][k] for r in reports],
                f"{where}{one['rows']} row{'s'[: one['rows'] != 1]}",
            )


def _look(told: list[dict], where: str) -> None:
    one = told[0]
    for settings in one["tried"]:
        if batch_of(settings) != one["rows"]:
            raise Finding(
                "another batch",
                f"It tried {settings['rows']} rows, {settings['accumulate']} times, {where}; the "
                f"batch has {one['rows']} rows. That trains another model: fewer rows need more "
                "micro-batches, and more rows need fewer.",
            )
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
    batch = batch_of(got)
    if batch is None:
        raise Finding(
            "not settings", f"{got} came back {where}: rows and accumulate have to be integers."
        )
    if batch != one["rows"]:
        raise Finding(
            "another batch",
            f"{got['rows']} rows, {got['accumulate']} times, make a batch of {batch} {where}; it "
            f"has {one['rows']}. That trains another model: fewer rows need more micro-batches.",
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
    tried, short, stop = one["tried"], one["short"], rung_of(one["right"])
    rungs = [rung_of(settings) for settings in tried]
    if None in rungs:
        raise Finding(
            "beside the ladder",
            f"{WAY} {where}, and on its way tried some that are on no rung: each rung changes what "
            "it names and keeps the rest.",
        )
    if any(rung > stop for rung in rungs):
        raise Finding(
            "went on after it fit",
            f"{WAY} {where}, and tried rungs below them too. Each attempt is a run on the whole "
            "machine: stop at the first that fits.",
        )
    _look_at_the_order(_once(tried), _once(short), where)
    if len(tried) > len(short):
        raise Finding(
            "too many attempts",
            f"It took {len(tried)} attempts {where}, some of them twice; {len(short)} do.",
        )


def _look_at_the_order(tried: list[dict], short: list[dict], where: str) -> None:
    """The right way's attempts and no others, in its order; a repeated one may be left out."""
    left = [settings for settings in short if settings not in tried]
    more = [settings for settings in tried if settings not in short]
    up = [settings for settings in left or more if _is_up(settings, short)]
    between = more and more[0]["rows"] > 1 and rung_of(more[0]) == 1
    if short[1:2] == left[:1] and between:
        raise Finding(
            "rows step by step",
            f"{WAY} {where}, and tried this on its way down: {_shown(more[0])}. The first rung is "
            "one row at a time, at once; more rows are tried when a step fits.",
        )
    if up and not any(_is_up(settings, short) for settings in tried):
        raise Finding(
            "not back up",
            f"{WAY} {where}, and never tried {up[0]['rows']} rows there. Once a step fits, raise "
            "the rows again as far as they go.",
        )
    if up:
        raise Finding(
            "not twice as many",
            f"{WAY} {where}, and on the way back up it {'left out' if left else 'also tried'} "
            f"{up[0]['rows']} rows. Go up in steps: twice as many rows, as long as that fits.",
        )
    if left:
        raise Finding(
            "a rung left out",
            f"{WAY} {where}, and it never tried this on its way: {_shown(left[0])}. Where that "
            "fits, it is faster.",
        )
    if more or tried != short:
        odd = next(settings for settings in tried if settings != short[tried.index(settings)])
        raise Finding(
            "another order",
            f"{WAY} {where}, and not in the ladder's order. Attempt {tried.index(odd) + 1} was "
            f"this: {_shown(odd)}. Begin with all rows at once, and take one rung after another.",
        )


def _once(tried: list[dict]) -> list[dict]:
    return [settings for i, settings in enumerate(tried) if settings not in tried[:i]]


def _is_up(settings: dict, short: list[dict]) -> bool:
    """Whether it is an attempt of the way back up: on the last rung, with more than one row."""
    return settings["rows"] > 1 and rung_of(settings) == rung_of(short[-1]) and settings != short[0]


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
        "Under five budgets of real engines, on two ranks and on three, and on machines of paper "
        "with up to 64 rows, it went down rung by rung, stopped at the first that fits, and went "
        "up again in rows as far as they go; where nothing fits it said so."
    ),
    hints=(
        "Keep one dict of settings. A rung changes what it names in it, and the rest stays.",
        "try: attempt(**settings) … except OutOfMemory: the next rung. Where it does not raise, "
        "leave the loop.",
        "Back up: twice the rows, half the micro-batches, as long as there is more than one. The "
        "last that did not raise is the answer.",
    ),
)
