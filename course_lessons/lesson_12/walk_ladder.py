"""`walk_ladder` of lesson 12: remedies one after another until a step fits, then back up in rows.
It runs real engines, measured on the judge's ranks, and simulated machines, on which a step needs
some bytes per row (fewer with recomputation) and some bytes for a stage's states."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch.distributed as dist

from course_classroom.judge import frame, looking, words
from course_classroom.judge.answer import Answer
from course_classroom.judge.judge import Judge, on, refuse_none
from course_lessons.lesson_12 import ladder_walk as way
from course_lessons.lesson_12 import runs
from course_lessons.lesson_12.ladder_walk import Attempt, Needs, batch_of, rung_of

ROWS = 2
# (the first rung that fits, the number of rows that fit there), or None if nothing fits
BUDGETS = ((4, 2), (0, ROWS), (2, 1), (7, 1), None)
# Simulated: (a rank's rows, the first rung that fits, the rows that fit there).
MACHINES = ((8, 0, 8), (16, 1, 2), (8, 2, 4), (64, 3, 64), (16, 4, 4), (32, 5, 8), (8, 6, 8))
MACHINES += ((64, 7, 32), (1, 4, 1), (4, None, 0))
SAYS = words.Page(__file__, "walk_ladder")


def measured(seed: int, group: dist.ProcessGroup, known: dict[str, int]) -> Needs:
    """Return a function that measures each setting's bytes on this group once."""
    mesh = runs.mesh_of(group)

    def needs(settings: Mapping) -> int:
        key, one = repr(sorted(settings.items(), key=str)), dict(settings)
        if key not in known:
            config = runs.config_of(seed, recompute=one.pop("recompute"))
            known[key] = runs.step_needs(config, mesh, **one)
        return known[key]

    return needs


def machines(needs: Needs, when: str = "") -> Iterator[Attempt]:
    """Yield a machine for each of BUDGETS, limited to the wanted setting's bytes on this group."""
    for wanted in BUDGETS:
        limit = 1000 if wanted is None else needs(way.on_rung(ROWS, *wanted))
        yield Attempt(ROWS, limit, needs, f"{when}, with a budget of {limit:,} bytes")


def on_paper(rows: int, rung: int | None, fit: int, seed: int) -> Attempt:
    """Return a machine on which `fit` of `rows` rows fit at `rung`, and none at earlier rungs."""
    drawn = random.Random(seed)
    row = drawn.randint(2, 4)  # bytes of a recomputed row
    kept = row * drawn.randint(70, 90)  # of a stored row
    states = [drawn.randint(1, 99) + 1000 * k for k in range(len(way.KINDS), 0, -1)]

    def needs(settings: Mapping) -> int:
        kind = settings["stage"], settings["offload"]
        if kind not in way.KINDS:
            raise ValueError(f"no engine takes {dict(settings)}")
        each = row if settings["recompute"] else kept
        return settings["rows"] * each + states[way.KINDS.index(kind)]

    limit = 0 if rung is None else needs(way.on_rung(rows, rung, fit))
    where = f"on a simulated machine with room for {limit:,} bytes and a batch of {rows}"
    return Attempt(rows, limit, needs, where)


def measure(seed: int, members: list[int]) -> dict[str, int]:
    """Measure the settings of the right walks on these ranks; all ranks must call this."""
    group, known = dist.new_group(members), {}
    if dist.get_rank() in members:
        for machine in machines(measured(seed, group, known)):
            way.walk(machine)
    return known


def run(
    function: Callable, group: dist.ProcessGroup, seed: int, known: list[dict], when: str
) -> list[dict]:
    """Run the answer's walk and the right walk under each budget, then on simulated machines."""
    needs = measured(seed, group, known[group.rank()])
    paper = [on_paper(*one, seed + k) for k, one in enumerate(MACHINES)]
    return [way.report(function, machine) for machine in (*machines(needs, when), *paper)]


def judge_ladder(answer: Answer, judge: Judge) -> None:
    """Try five budgets and simulated machines, on two ranks, then on three ranks."""
    judge.take(answer, __name__, runs.__name__)
    seed = looking.fresh_seed() % 2**16
    for members in (looking.TWO, looking.THREE):
        when = on(members)
        # Each setting is trained before the answer's time begins, because it is slow when busy.
        needs = judge.measured(measure, seed, members)
        given = (seed, [needs[rank] for rank in members], when)
        reports = judge.trial(answer, run, *given, members=members, when=when)
        for walks in zip(*reports, strict=True):
            look(walks, walks[0]["where"])


def look(walks: Sequence[dict], where: str) -> None:
    """Check one machine: the result on every rank, then the attempts before it."""
    one = walks[0]
    right, got = one["right"], one["settings"]
    for settings in one["tried"]:
        if batch_of(settings) != one["rows"]:
            raise SAYS("wrong batch", **{**settings, "batch": one["rows"], "where": where})
    nothing = [walk["kind"] == "NoneType" for walk in walks]
    holds = {
        "gave up at the first": one["raised"] and right,
        "out of memory": one["raised"],
        "does not fit #1": not right and not nothing[0],
        "a rung left out #3": right and all(nothing) and one_left_out(one),
    }
    SAYS.refuse(holds, got=shown(got), right=shown(right), where=where)
    if not right:
        return
    refuse_none(walks, where, "the settings that fit")
    SAYS.refuse({"not settings #1": got is None}, kind=one["kind"], where=where)
    look_at_settings(one, where)
    look_at_the_way(one, where)


def look_at_settings(one: dict, where: str) -> None:
    """Check that the returned settings have the caller's batch, fit, and are the fastest."""
    got, right, needs = one["settings"], one["right"], one["needs"]
    over, other = needs is not None and needs > one["limit"], got != right
    alike = all(got[k] == right[k] for k in ("recompute", "stage", "offload"))
    holds = {
        "not settings #2": batch_of(got) is None,
        "wrong batch": batch_of(got) != one["rows"],
        "not settings #3": needs is None,
        "it does not shard": over and got["stage"] == 0 and right["stage"],
        "does not fit #2": over,
        "not back up #1": other and alike,
        "a rung left out #1": other and right["recompute"] and not got["recompute"],
        "not on the ladder #1": other and rung_of(got) is None,
        "a rung left out #3": other and one_left_out(one),
        "further down than needed": other,
    }
    about = {"settings": got, "got": shown(got), "right": shown(right), "more_rows": right["rows"]}
    about |= {"rows": got["rows"], "accumulate": got["accumulate"], "batch": one["rows"]}
    SAYS.refuse(holds, **about, needs=needs, where=where)


def look_at_the_way(one: dict, where: str) -> None:
    """Check the attempts. All are on rungs in the right order, none comes after the first fit, and
    they differ; a repeated attempt may be omitted."""
    rungs = [rung_of(settings) for settings in one["tried"]]
    tried, short = once(one["tried"]), once(one["short"])

    def is_up(settings: dict) -> bool:
        """Return True for settings on the way back up: on the last rung, with several rows."""
        last = rung_of(settings) == rung_of(short[-1]) and settings != short[0]
        return settings["rows"] > 1 and last

    left = [settings for settings in short if settings not in tried]
    more = [settings for settings in tried if settings not in short]
    up = [settings["rows"] for settings in left or more if is_up(settings)]
    stepwise = short[1:2] == left[:1] and more and more[0]["rows"] > 1 and rung_of(more[0]) == 1
    odd = next((one for k, one in enumerate(tried) if short[k : k + 1] != [one]), None)
    holds = {
        "not on the ladder #2": None in rungs,
        "went on after it fit": max((r for r in rungs if r), default=0) > rung_of(one["right"]),
        "rows step by step": stepwise,
        "not back up #2": up and not any(map(is_up, tried)),
        "not twice as many": up,
        "a rung left out #2": left,
        "wrong order": odd,
        "too many attempts": len(one["tried"]) > len(one["short"]),
    }
    about = {"did": "left out" if left else "also tried", "up": next(iter(up), None)}
    about |= {"left": shown(next(iter(left), None)), "more": shown(next(iter(more), None))}
    about |= {"odd": shown(odd), "k": tried.index(odd) + 1 if odd else None}
    about |= {"tried": len(one["tried"]), "short": len(one["short"])}
    SAYS.refuse(holds, **about, where=where)


def one_left_out(one: dict) -> bool:
    """Return True if a walk started at the top and omitted just one rung of the right walk."""
    left = set(map(rung_of, one["short"])) - set(map(rung_of, one["tried"]))
    return len(left) == 1 and 1 not in left


def once(tried: list[dict]) -> list[dict]:
    """Return the attempts without repetitions, in the order of their first occurrence."""
    return [settings for i, settings in enumerate(tried) if settings not in tried[:i]]


def shown(settings: dict | None) -> str:
    """Describe settings in words, or None."""
    if settings is None:
        return "None"
    away = settings["offload"]
    more = "" if away is None else ", both on CPU" if isinstance(away, dict) else ", states on CPU"
    again = ", recomputing" if settings["recompute"] else ""
    rows = f"{settings['rows']} row{'s'[: settings['rows'] != 1]}"
    return f"Stage {settings['stage']}{more}{again}, {rows} {settings['accumulate']} times"


LADDER = frame.Exercise(judge=judge_ladder, **SAYS.about)
