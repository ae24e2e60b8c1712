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
from course_lib.classroom.checks.words import Words
from course_lib.ledger import forms

ROUGHLY = 1e-5  # a sum that went through float32 is off by digits, and by no idea
ALONE = ", with gradients of no model, where rank 2 has empty shards"
SAYS = Words("""
copies counted n times #1: What every rank holds alike, such as a norm's weight, is in it once for
  each rank. It is one logical tensor: it counts once, on whichever rank it is added.
copies counted n times #2: Two things are counted too often: what every rank holds alike once for
  each rank, and the tied weight once for each of its two names.
tied counted twice: The tied weight is in it twice, once for each of its names. Both lead to one
  tensor, with one gradient.
a rank's own norm: It is the norm of what this rank holds. The other ranks' shards are gradients of
  the same model, and each rank would clip by another factor.
copies left out: The shards are in it, and what every rank holds alike is not.
shards left out: Only what every rank holds alike is in it; the shards are missing.
averaged: The ranks' sums were averaged. That is right for copies, and makes a shard's part n times
  too small: shards are different elements, and are added.
norms added: Norms were added up. The norm of several tensors together is the root of the sum of
  their *squares*.
the largest rank's: It is the largest of the ranks' own norms. For the 2-norm the shards' squares
  are added.
no root: It is the sum of squares; the norm is its root.
another norm: It is the 1-norm, the sum of absolute values, or the maximum norm, the largest of
  them.
input changed: Your function changed the dictionary or the set that it was given ({where}, rank
  {rank}). The caller still needs them.
not a number: Rank {rank} got a {kind} back {where}; the norm before clipping is wanted, one number,
  as a float or a tensor of one element.
the norm after: {head} It is the norm after clipping; return the one before.
rounded #1: The norm is right to some digits {where}, and no more: the gradients are float64, and
  something on the way is not.
another second step: {head} In the step before it was right. Does your function keep something
  between calls, in a global or in a default argument?
wrong norm: {head}
wrong factor #1: The norm is right, and the gradients were multiplied by most / norm {where}. As in
  torch it is most / (norm + 1e-6), which is never a division by 0.
rounded #2: The gradients were scaled by a factor that is right to six digits {where}, and no more:
  they are float64, and something on the way to the factor is not.
nothing scaled: The norm is right and no gradient has changed {where}. Scale them in place: the
  optimizer reads the tensors that you were given.
tied scaled twice: The gradient of the tied weight was scaled twice {where}.
wrong factor #2: The gradient of the tied weight was not scaled as the others {where}.
made longer: The norm is below `most` {where}, and the gradients were scaled all the same. Clipping
  shortens what is too long and leaves the rest alone.
only some scaled: Scaled was a part of the gradients {where}; {left}, for one, was left as it was.
  The direction of the whole gradient has to stay.
wrong factor #3: The norm is right, and {name} was not multiplied by most / (norm + 1e-6), which is
  {want:.6g} ({where}).
too much sent: The norm is right, and rank {rank} sent {bytes} bytes for it {where}: more than a
  number for each tensor. A norm needs the squares' sum, and no gradients.
""")


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


CLIP = Exercise(
    name="clip_as_one",
    title="Gradient clipping on shards",
    points=4,
    judge=judge_clip,
    when_right=(
        "On three ranks and on two the norm is that of the dense model's gradient, each shard "
        "counted where it is, each replicated gradient once, the tied weight once; all gradients "
        "were scaled alike, and only where they were too long; three steps gave the dense model's "
        "weights."
    ),
    hints=(
        "Write down the squared norm of the dense gradient as a sum over tensors. Which of these "
        "terms does a rank know alone, and of which does it know a part?",
        "Add up the squares of the shards, sum that one number over the ranks, and then add what "
        "every rank knows anyway.",
        "Two names, one tensor: `id(tensor)` or `is` tells. It counts once, and is scaled once.",
        "torch's factor is most / (norm + 1e-6), and never above 1. `tensor.mul_(factor)` scales "
        "in place.",
    ),
)
