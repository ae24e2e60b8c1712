"""`walk_ladder` of lesson 12: one remedy after another until a step fits, and then back up in rows.

What the answer settles on is held against what was measured on the judge's ranks, and against the
first rung that fits.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_12 import ladder_trial as trial
from course_lib.classroom.checks.lesson_12.ladder_walk import batch_of, rung_of
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_12/walk_ladder")


def judge_ladder(answer: Answer, judge: Judge) -> None:
    """Five budgets and machines of paper, on two ranks, then on three."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed() % 2**16
    for members in (TWO, THREE):
        when = on(members)
        # Each setting is trained before the answer's time begins: a busy machine takes a while.
        needs = judge.measured(trial.measure, seed, members)
        known = [needs[rank] for rank in members]
        reports = judge.trial(answer, trial.run, seed, known, members=members, when=when)
        for walks in zip(*(report["walks"] for report in reports), strict=True):
            look(walks, f"{when}, with a budget of {walks[0]['limit']:,} bytes")
        for walks in zip(*(report["paper"] for report in reports), strict=True):
            rows = walks[0]["rows"]
            where = f"on a machine of paper with room for {walks[0]['limit']:,} bytes and a batch"
            look(walks, f"{where} of {rows} row{'s'[: rows != 1]}")


def look(walks: tuple[dict, ...], where: str) -> None:
    """One machine: what came back on every rank, then the way that led to it."""
    one = walks[0]
    right, got, batch = one["right"], one["settings"], one["rows"]
    for settings in one["tried"]:
        if batch_of(settings) != batch:
            rows, accumulate = settings["rows"], settings["accumulate"]
            about = {"rows": rows, "accumulate": accumulate, "batch": batch}
            raise SAYS("another batch #1", where=where, **about)
    if one["raised"]:
        raise SAYS("gave up at the first" if right else "out of memory", where=where)
    if not right:
        if one["kind"] != "NoneType":
            raise SAYS("does not fit #1", where=where)
        return
    if one_left_out(one) and all(walk["kind"] == "NoneType" for walk in walks):
        raise SAYS("a rung left out #3", got="None", where=where, right=shown(right))
    refuse_none(walks, where, "the settings that fit")
    if got is None:
        raise SAYS("not settings #1", kind=one["kind"], where=where)
    look_at_settings(one, where)
    look_at_the_way(one, where)


def look_at_settings(one: dict, where: str) -> None:
    """The settings that came back: a batch like the caller's, that fits, and as fast as can be."""
    got, right, needs = one["settings"], one["right"], one["needs"]
    if batch_of(got) is None:
        raise SAYS("not settings #2", settings=got, where=where)
    if batch_of(got) != one["rows"]:
        rows, accumulate = got["rows"], got["accumulate"]
        about = {"rows": rows, "accumulate": accumulate, "batch": one["rows"]}
        raise SAYS("another batch #2", where=where, **about)
    if needs is None:
        raise SAYS("not settings #3", settings=got, where=where)
    if needs > one["limit"]:
        everything = got["stage"] == 0 and right["stage"]
        entry = "it does not shard" if everything else "does not fit #2"
        raise SAYS(entry, got=shown(got), where=where, needs=needs)
    if got == right:
        return
    about = {"got": shown(got), "right": shown(right), "more_rows": right["rows"], "where": where}
    same = all(got[k] == right[k] for k in ("recompute", "stage", "offload"))
    entries = {
        "not back up #1": same,
        "a rung left out #1": right["recompute"] and not got["recompute"],
        "beside the ladder #1": rung_of(got) is None,
        "a rung left out #3": one_left_out(one),
        "further down than needed": True,
    }
    raise SAYS(next(entry for entry, holds in entries.items() if holds), **about)


def look_at_the_way(one: dict, where: str) -> None:
    """The attempts: on rungs, none after the first that fits, in order, none twice."""
    tried, short = one["tried"], one["short"]
    rungs = [rung_of(settings) for settings in tried]
    if None in rungs:
        raise SAYS("beside the ladder #2", where=where)
    if max(rungs, default=0) > rung_of(one["right"]):
        raise SAYS("went on after it fit", where=where)
    look_at_the_order(once(tried), once(short), where)
    if len(tried) > len(short):
        raise SAYS("too many attempts", tried=len(tried), short=len(short), where=where)


def look_at_the_order(tried: list[dict], short: list[dict], where: str) -> None:
    """The right way's attempts and no others, in its order; a repeated one may be left out."""

    def is_up(settings: dict) -> bool:
        """Whether it is of the way back up: on the last rung, with more than one row."""
        last = rung_of(settings) == rung_of(short[-1]) and settings != short[0]
        return settings["rows"] > 1 and last

    left = [settings for settings in short if settings not in tried]
    more = [settings for settings in tried if settings not in short]
    up = [settings["rows"] for settings in left or more if is_up(settings)]
    if short[1:2] == left[:1] and more and more[0]["rows"] > 1 and rung_of(more[0]) == 1:
        raise SAYS("rows step by step", odd=shown(more[0]), where=where)
    if up and not any(map(is_up, tried)):
        raise SAYS("not back up #2", up=up[0], where=where)
    if up:
        did = "left out" if left else "also tried"
        raise SAYS("not twice as many", did=did, up=up[0], where=where)
    if left:
        raise SAYS("a rung left out #2", left=shown(left[0]), where=where)
    if tried != short:
        odd = next(settings for settings in tried if settings != short[tried.index(settings)])
        raise SAYS("another order", k=tried.index(odd) + 1, odd=shown(odd), where=where)


def one_left_out(one: dict) -> bool:
    """Whether it began at the top, and tried all rungs of the right way but one."""
    left = set(map(rung_of, one["short"])) - set(map(rung_of, one["tried"]))
    return len(left) == 1 and 1 not in left


def once(tried: list[dict]) -> list[dict]:
    """Each attempt where it came first."""
    return [settings for i, settings in enumerate(tried) if settings not in tried[:i]]


def shown(settings: dict) -> str:
    """Settings in words."""
    away = settings["offload"]
    more = "" if away is None else ", both away" if isinstance(away, dict) else ", states away"
    again = ", recomputing" if settings["recompute"] else ""
    rows = f"{settings['rows']} row{'s'[: settings['rows'] != 1]}"
    return f"Stage {settings['stage']}{more}{again}, {rows} {settings['accumulate']} times"


LADDER = Exercise(judge=judge_ladder, **SAYS.about)
