"""`clip_as_one` of lesson 08: the norm of a cut model's gradients, each logical number once.

An answer clips a cut GPT in three steps of training, beside torch's own clipping of the dense
model; what it returns is also held against the numbers of known wrong ideas.
"""

from __future__ import annotations

import math
from functools import partial

from course_lib.classroom.checks import looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_08 import clip_trial
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed

TOLERANCE = 1e-10  # float64, relative
ROUGHLY = 1e-5  # a sum that went through float32 is off by digits, and by no idea
ALONE = ", with gradients of no model, where rank 2 has empty shards"
# What to say to a norm that is one of the readings of clip_trial.
IDEAS = {
    "copies counted n times": (
        "copies counted n times",
        "What every rank holds alike, such as a norm's weight, is in it once for each rank. It is "
        "one logical tensor: it counts once, on whichever rank it is added.",
    ),
    "tied counted twice": (
        "tied counted twice",
        "The tied weight is in it twice, once for each of its names. Both lead to one "
        "tensor, with one gradient.",
    ),
    "tied twice, copies n times": (
        "copies counted n times",
        "Two things are counted too often: what every rank holds alike once for each rank, and "
        "the tied weight once for each of its two names.",
    ),
    "a rank's own": (
        "a rank's own norm",
        "It is the norm of what this rank holds. The other ranks' shards are gradients of the same "
        "model, and each rank would clip by another factor.",
    ),
    "copies left out": (
        "copies left out",
        "The shards are in it, and what every rank holds alike is not.",
    ),
    "shards left out": (
        "shards left out",
        "Only what every rank holds alike is in it; the shards are missing.",
    ),
    "averaged": (
        "averaged",
        "The ranks' sums were averaged. That is right for copies, and makes a shard's part n times "
        "too small: shards are different elements, and are added.",
    ),
    "norms added": (
        "norms added",
        "Norms were added up. The norm of several tensors together is the root of the sum of their "
        "*squares*.",
    ),
    "the largest rank's": (
        "the largest rank's",
        "It is the largest of the ranks' own norms. For the 2-norm the shards' squares are added.",
    ),
    "no root": ("no root", "It is the sum of squares; the norm is its root."),
    "absolute values": ("another norm", "It is the sum of absolute values: the 1-norm."),
    "largest element": ("another norm", "It is the largest absolute value: the maximum norm."),
}
IDEAS["a rank's own, tied twice"] = IDEAS["a rank's own"]
for _also in ("ranks", "shards", "both"):
    IDEAS[f"norms of {_also} added"] = IDEAS["norms added"]
IDEAS["root of the shards alone"] = IDEAS["norms added"]


def judge_clip(answer: Answer, judge: Judge) -> None:
    """Train three steps on three ranks and on two others, with gradients of no model between."""
    judge.take(answer, clip_trial.__name__)
    seed = fresh_seed()
    trials = [(clip_trial.train, THREE, [], ""), (clip_trial.alone, THREE, [2], ALONE)]
    for how, members, empty, also in [*trials, (clip_trial.train, TWO, [], "")]:
        when = f"{on(members)}{also}"
        reports = judge.trial(answer, how, seed, members=members, when=when, empty=empty)
        for k in range(len(reports[0]["steps"])):
            told = [report["steps"][k] for report in reports]
            where = f"{when}, in step {k + 1}"
            _look_at_results(told, where)
            if len(members) == 2 and not all(map(_right, told)):
                refuse_world_numbers(answer, where)
            _look_at_norms(told, where, k)
            for rank, one in enumerate(told):
                _look_at_factors(one, f"{where}, rank {rank}")
            for rank, one in enumerate(told):
                _look_at_traffic(one, len(members), f"{where}, rank {rank}")
                if one["changed"]:
                    raise Finding(
                        "input changed",
                        f"Your function changed the dictionary or the set that it was given "
                        f"({where}, rank {rank}). The caller still needs them.",
                    )
        gap = max(report["gap"] for report in reports)
        if not gap <= TOLERANCE:
            raise Finding(
                "other weights",
                f"Each step is right by itself, and after three of them the weights are off by "
                f"{gap:.2g}, {when}.",
            )


def _right(one: dict) -> bool:
    """Whether the norm is right, if only as a float32, as for a log: its factor says the rest."""
    return _close(one["norm"], one["want"], ROUGHLY if one.get("single") else 2.0**-23)


def _close(a: float, b: float, bound: float = 1e-9) -> bool:
    return math.isclose(a, b, rel_tol=bound, abs_tol=1e-14)


def _look_at_results(told: list[dict], where: str) -> None:
    refuse_none(told, where, "the norm")
    for rank, one in enumerate(told):
        if one["norm"] is None:
            raise Finding(
                "not a number",
                f"Rank {rank} got a {one['kind']} back {where}; the norm before clipping is "
                "wanted, one number, as a float or a tensor of one element.",
            )


def _look_at_norms(told: list[dict], where: str, step: int = 0) -> None:
    """The idea that explains what all ranks have got, where one of them is wrong."""
    off = [rank for rank, one in enumerate(told) if not _right(one)]
    if not off:
        return
    one = told[off[0]]
    ratio = one["norm"] / one["want"]
    digits = 3 if abs(ratio - 1) > 0.01 else 9  # nothing is "1 times what it should be"
    said = f"The norm on rank {off[0]} is {ratio:.{digits}g} times what it should be {where}."
    _look_for_ideas(told, said, 1e-9)
    if all(_close(each["norm"], min(each["want"], each["most"]), ROUGHLY) for each in told):
        raise Finding(
            "the norm after", f"{said} It is the norm after clipping; return the one before."
        )
    if all(_close(each["norm"], each["want"], ROUGHLY) for each in told):
        raise Finding(
            "rounded",
            f"The norm is right to some digits {where}, and no more: the gradients are float64, "
            "and something on the way is not.",
        )
    _look_for_ideas(told, said, ROUGHLY)
    found, right = ([each[key] for each in told] for key in ("norm", "want"))
    looking.refuse_general(found, right, where, what="norm")
    if step:
        raise Finding(
            "another second step",
            f"{said} In the step before it was right. Does your function keep something between "
            "calls, in a global or in a default argument?",
        )
    raise Finding("wrong norm", said)


def _look_for_ideas(told: list[dict], said: str, bound: float) -> None:
    """A Finding where one wrong idea leads to every rank's number."""
    for reading, (name, text) in IDEAS.items():
        if all(_close(each["norm"], each["readings"][reading], bound) for each in told):
            raise Finding(name, f"{said} {text}")


def _look_at_factors(one: dict, where: str) -> None:
    """The norm is right: by which factor was each gradient scaled?"""
    want = min(1.0, one["most"] / (one["want"] + 1e-6))
    found = {name: factor for name, factor in one["factors"].items() if factor is not None}
    close = partial(_close, bound=ROUGHLY if one["single"] else 1e-9)
    if all(close(factor, want) for factor in found.values()):
        return
    if want < 1 and all(close(f, one["most"] / one["want"]) for f in found.values()):
        raise Finding(
            "wrong factor",
            f"The norm is right, and the gradients were multiplied by most / norm {where}. As in "
            "torch it is most / (norm + 1e-6), which is never a division by 0.",
        )
    if all(_close(factor, want, 2.0**-22) for factor in found.values()):
        raise Finding(
            "rounded",
            f"The gradients were scaled by a factor that is right to six digits {where}, and no "
            "more: they are float64, and something on the way to the factor is not.",
        )
    if want < 1 and all(close(factor, 1.0) for factor in found.values()):
        raise Finding(
            "nothing scaled",
            f"The norm is right and no gradient has changed {where}. Scale them in place: the "
            "optimizer reads the tensors that you were given.",
        )
    others = {name: f for name, f in found.items() if name not in one["tied"]}
    tied = found.get(one["tied"][0])
    if tied is not None and all(close(f, want) for f in others.values()) and want < 1:
        times = "twice" if close(tied, want * want) else "not as the others"
        raise Finding(
            "tied scaled twice" if times == "twice" else "wrong factor",
            f"The gradient of the tied weight was scaled {times} {where}.",
        )
    if want == 1.0:
        raise Finding(
            "made longer",
            f"The norm is below `most` {where}, and the gradients were scaled all the same. "
            "Clipping shortens what is too long and leaves the rest alone.",
        )
    left = sorted(name for name, f in found.items() if close(f, 1.0))
    if left:
        raise Finding(
            "only some scaled",
            f"Scaled was a part of the gradients {where}; {left[0]}, for one, was left as it was. "
            "The direction of the whole gradient has to stay.",
        )
    wrong = next(name for name, f in found.items() if not close(f, want))
    by = f", but by {found[wrong]:.6g}" if math.isfinite(found[wrong]) else ""
    raise Finding(
        "wrong factor",
        f"The norm is right, and {wrong} was not multiplied by most / (norm + 1e-6), which is "
        f"{want:.6g}{by} ({where}).",
    )


def _look_at_traffic(one: dict, n: int, where: str) -> None:
    allowed = 2 * (n - 1) / n * 8 * one["names"]
    if one["bytes"] > allowed:
        raise Finding(
            "too much sent",
            f"The norm is right, and {one['bytes']} bytes were sent for it {where}: more than a "
            "number for each tensor. A norm needs the squares' sum, and no gradients.",
        )


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
