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
from course_lib.classroom.checks.words import Words

SAYS = Words("""
another batch #1: It tried {rows} rows, {accumulate} times, {where}; the batch has {batch} rows.
  That trains another model: half the rows need twice the micro-batches.
another batch #2: {rows} rows, {accumulate} times, came back {where}; the batch has {batch} rows.
  That trains another model: half the rows need twice the micro-batches.
out of memory: It ended with OutOfMemory {where}, where nothing fits. Return None then.
does not fit #1: No rung fits {where}, and it returned one. Return None then.
does not fit #2: {got} was run {where}, and a rank held {needs:,}.
it does not shard: {got} was run {where}, and a rank held {needs:,}. At stage 0 every rank holds
  everything.
gave up at the first: It ended with OutOfMemory {where}. Catch that, and try the next rung.
not settings #1: A {kind} came back {where}; return a dict with the five settings.
not settings #2: {settings} came back {where}: rows and accumulate have to be integers.
not settings #3: {settings} came back {where}: no engine takes these settings.
not back up #1: {got} fits {where}, and so do {more_rows} rows at once. Once a step fits, raise the
  rows again as far as they go: fewer, larger micro-batches are faster.
not back up #2: It came to the right settings {where}, and never tried {up} rows there. Once a step
  fits, raise the rows as far as they go.
a rung left out #1: {got} fits {where}, without recomputation, which comes before the stages: each
  rung stands on those before it.
a rung left out #2: It came to the right settings {where}, and never tried this on its way: {left}.
  Where that fits, it is faster.
a rung left out #3: {got} came back {where}, and one rung was never tried. What fits: {right}.
further down than needed: {got} was run {where}, and fits. So does {right}, which is faster: stop at
  the first rung that fits.
beside the ladder #1: {got} fits {where}, and is on no rung: each changes what it names and keeps
  the rest.
beside the ladder #2: It came to the right settings {where}, and tried some on its way that are on
  no rung: each changes what it names and keeps the rest.
went on after it fit: It came to the right settings {where}, and tried rungs below them. Each
  attempt is a run on the whole machine: stop at the first that fits.
rows step by step: It came to the right settings {where}, and tried this on its way down: {odd}. The
  first rung is one row at a time; more are tried when a step fits.
not twice as many: It came to the right settings {where}, and on the way back up it {did} {up} rows.
  Go up to twice as many rows, as long as that fits.
another order: It came to the right settings {where}, not in the ladder's order. Attempt {k} was
  this: {odd}. Begin with all rows at once, and take one rung after another.
too many attempts: It took {tried} attempts {where}, some of them twice; {short} do.
""")


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
