"""`clip_as_one` of lesson 08: the norm of a sharded model's gradients, each logical element once.

An answer clips a sharded GPT in three steps of training, beside torch's own clipping of the dense
model; what it returns is also held against the numbers of known wrong ideas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from course_lib.classroom.checks import looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_08 import clip_trial
from course_lib.classroom.checks.lesson_08.model import refuse
from course_lib.classroom.checks.looking import ITEM, THREE, TWO
from course_lib.classroom.checks.words import Page
from course_lib.ledger import forms

ROUGHLY = 1e-5  # a sum that went through float32 is off by digits, and by no idea
ALONE = ", with gradients of no model, where rank 2 has empty shards"
SAYS = Page("lesson_08/clip_as_one")


def judge_clip(answer: Answer, judge: Judge) -> None:
    """Train three steps on three ranks and on two others, with gradients of no model between."""
    judge.take(answer, clip_trial.__name__)
    seed = looking.fresh_seed()
    trials = [(clip_trial.train, THREE, [], ""), (clip_trial.alone, THREE, [2], ALONE)]
    for how, members, empty, also in [*trials, (clip_trial.train, TWO, [], "")]:
        when = f"{on(members)}{also}"
        reports = judge.trial(answer, how, seed, members=members, when=when, empty=empty)
        for k, told in enumerate(zip(*reports, strict=True)):
            _look_at_step(told, f"{when}, in step {k + 1}", k)


def _look_at_step(told: Sequence[dict], where: str, step: int) -> None:
    refuse_none(told, where, "the norm")
    refuse(SAYS, "not a number", told, lambda one: one["norm"] is None, where=where)
    _look_at_norms(told, where, step)
    for rank, one in enumerate(told):
        _look_at_factors(one, f"{where}, rank {rank}")
    fair = forms.all_reduce(len(told), ITEM * len(told[0]["factors"]))
    refuse(SAYS, "too much sent", told, lambda one: one["bytes"] > fair, where=where)
    refuse(SAYS, "input changed", told, lambda one: one["changed"], where=where)


def _right(one: dict) -> bool:
    """Whether the norm is right, if only as a float32, as for a log: its factor says the rest."""
    return _close(one["norm"], one["want"], ROUGHLY if one.get("single") else 2.0**-23)


def _close(a: float, b: float, bound: float = 1e-9) -> bool:
    return math.isclose(a, b, rel_tol=bound, abs_tol=1e-14)


def _look_at_norms(told: Sequence[dict], where: str, step: int = 0) -> None:
    """The idea that explains what all ranks have got, where one of them is wrong."""
    off = [rank for rank, one in enumerate(told) if not _right(one)]
    if not off:
        return
    ratio = told[off[0]]["norm"] / told[off[0]]["want"]
    digits = 3 if abs(ratio - 1) > 0.01 else 9  # nothing is "1 times what it should be"
    head = f"The norm on rank {off[0]} is {ratio:.{digits}g} times what it should be {where}."
    _look_for_ideas(told, head, 1e-9)
    if all(_close(one["norm"], min(one["want"], one["most"]), ROUGHLY) for one in told):
        raise SAYS("the norm after", head=head)
    if all(_close(one["norm"], one["want"], ROUGHLY) for one in told):
        raise SAYS("rounded #1", where=where)
    _look_for_ideas(told, head, ROUGHLY)
    found, right = ([one[key] for one in told] for key in ("norm", "want"))
    looking.refuse_general(found, right, where, what="norm")
    raise SAYS("another second step" if step else "wrong norm", head=head)


def _look_for_ideas(told: Sequence[dict], head: str, bound: float) -> None:
    """A Finding where one wrong idea leads to every rank's number."""
    for k, (entry, _) in enumerate(told[0]["readings"]):
        if all(_close(one["norm"], one["readings"][k][1], bound) for one in told):
            name, text = SAYS.of(entry)
            raise Finding(name, f"{head} {text}")


def _look_at_factors(one: dict, where: str) -> None:
    """The norm is right: by which factor was each gradient scaled?"""
    want = min(1.0, one["most"] / (one["want"] + 1e-6))
    found = {name: factor for name, factor in one["factors"].items() if factor is not None}
    near = ROUGHLY if one["single"] else 1e-9

    def all_are(factor: float, bound: float = near, but: tuple | list = ()) -> bool:
        return all(_close(f, factor, bound) for name, f in found.items() if name not in but)

    if all_are(want):
        return
    short, twice = want < 1, found.get(clip_trial.TIED[0])
    others = short and twice is not None and all_are(want, but=clip_trial.TIED)
    left = sorted(name for name, f in found.items() if _close(f, 1.0, near))
    reasons = {
        "wrong factor #1": short and all_are(one["most"] / one["want"]),
        "rounded #2": all_are(want, 2.0**-22),
        "nothing scaled": short and all_are(1.0),
        "tied scaled twice": others and _close(twice, want * want, near),
        "wrong factor #2": others,
        "made longer": not short,
        "only some scaled": bool(left),
        "wrong factor #3": True,
    }
    entry = next(entry for entry, met in reasons.items() if met)
    wrong = next(name for name, f in found.items() if not _close(f, want, near))
    raise SAYS(entry, where=where, name=wrong, want=want, left=left[0] if left else "")


CLIP = Exercise(judge=judge_clip, **SAYS.about)
