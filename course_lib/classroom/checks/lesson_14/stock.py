"""`take_stock` of lesson 14: which tensors of a stage-3 model are placeholders, and a whole save.

An answer counts, measures and saves a model whose large parameters are of size 0 between uses; held
against the whole model, against one gather for each, and against how much is whole at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_14 import stock_trial as trial
from course_lib.classroom.checks.lesson_14.stock_trial import (
    DECAY,
    KEYS,
    NORM,
    NUMEL,
    PLACEHOLDERS,
    SMALL,
    Sizes,
    Small,
)
from course_lib.classroom.checks.looking import THREE, TWO, Looks, fresh_seed, near
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_14/take_stock")


class Trial(NamedTuple):
    reports: list[dict]
    model: Small
    when: str
    n: int

    @property
    def state(self) -> dict[str, Tensor]:
        return self.model.state_dict(keep_vars=True)

    @property
    def cut(self) -> list[str]:
        """The names of a state_dict whose tensors are placeholders between uses."""
        return sorted(n for n, x in self.state.items() if self.is_cut(x))

    @staticmethod
    def is_cut(x: Tensor) -> bool:
        return isinstance(x, torch.nn.Parameter) and x.numel() > SMALL

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters()}


def judge_stock(answer: Answer, judge: Judge) -> None:
    """Try take_stock; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    h = 5 + seed % 4
    cases = ((THREE, Sizes(17 + seed % 5, h, h + 2)), (TWO, Sizes(19, h + 1, h + 5)))
    LOOKS.at(answer, (_tried(answer, judge, *case, seed) for case in cases))


def _tried(answer: Answer, judge: Judge, members: list[int], sizes: Sizes, seed: int) -> Trial:
    when = on(members)
    try:
        reports = judge.trial(answer, trial.run, list(sizes), seed, members=members, when=when)
    except Finding as finding:
        SAYS.refuse({"not all ranks gather": finding.hangs}, when=when, text=finding.text)
        raise
    refuse_none(reports, when, "a dictionary")
    return Trial(reports, Small(sizes, seed), when, len(members))


def _look_at_shape(one: Trial) -> None:
    keys = {"placeholders": PLACEHOLDERS, "decay": DECAY, "numel": NUMEL, "norm": NORM}
    for rank, report in enumerate(one.reports):
        looks = {"not a dictionary": report["kind"] != "dict", "a key missing": report["lost"]}
        lost, about = ", ".join(report["lost"]), {"rank": rank, "when": one.when}
        SAYS.refuse(looks, kind=report["kind"], keys=", ".join(KEYS), lost=lost, **about)
        for key, value in report["values"].items():
            listed = isinstance(value, list) == (key in (PLACEHOLDERS, DECAY))
            other = {"of another kind": isinstance(value, str) or not listed}
            SAYS.refuse(other, key=key, value=value, **keys, **about)


def _look_at_numbers(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        where = f"on rank {rank}, {one.when}"
        _look_at_placeholders(one, report["values"][PLACEHOLDERS], where)
        _look_at_decay(one, report["values"][DECAY], where)
        _look_at_count(one, report["values"], where)


def _look_at_placeholders(one: Trial, seen: list[str], where: str) -> None:
    extra, lost = sorted(set(seen) - set(one.cut)), sorted(set(one.cut) - set(seen))
    looks = {
        "one element is no placeholder": extra == ["temperature"] and not lost,
        "an empty buffer": extra == ["history"] and not lost,
        "second name missed": lost and not extra and not set(lost) & set(one.parameters),
        "looked at while whole": lost and not seen,
        "placeholders misread": seen != one.cut,
    }
    many, few = (", ".join(names) or "none" for names in (extra, lost))
    SAYS.refuse(looks, where=where, lost=", ".join(lost), many=many, few=few)


def _look_at_decay(one: Trial, seen: list[str], where: str) -> None:
    every = one.parameters
    more = sorted(name for name, p in every.items() if p.ndim > 1)
    right = [name for name in more if every[name].ndim == 2]
    looks = {
        "more than two dims": seen == more,
        "dims of a placeholder": seen in ([], [name for name in right if name not in one.cut]),
        "more than the parameters": "positions" in seen or "head.weight" in seen,
        "tied twice #1": sorted(set(seen)) == right,
        "placeholders decay": seen == [name for name in one.cut if name in every],
        "all decay": seen == sorted(every),
        "decay misread": True,
    }
    if seen != right:
        three = ", ".join(name for name in more if name not in right)
        SAYS.refuse(looks, seen=seen, where=where, three=three)


def _look_at_count(one: Trial, values: dict, where: str) -> None:
    every = list(one.parameters.values())
    large, small = (
        [p for p in every if (p.numel() > SMALL) is is_large] for is_large in (True, False)
    )
    tied = [one.parameters["tokens.weight"]]
    saved = [x for x in one.state.values() if not isinstance(x, torch.nn.Parameter)]
    counts = {
        NUMEL: lambda tensors: sum(x.numel() for x in tensors),
        NORM: lambda tensors: sum(float((x * x).sum()) for x in tensors) ** 0.5,
    }
    for key, count in counts.items():
        right, seen = count(every), values[key]
        ideas = [
            ("placeholders counted", count(small)),
            ("tied twice #2", count(every + tied)),
            ("buffers counted", count(every + list(one.model.buffers()))),
            ("buffers counted", count(every + saved)),
            ("tied twice #3", count(every + tied + saved)),
            ("what comes and goes alone", count(large)),
            ("added over the ranks", right * (one.n if key == NUMEL else one.n**0.5)),
            ("squared", right**2 if key == NORM else None),
            ("norms added", sum(float(x.norm()) for x in every) if key == NORM else None),
        ]
        met = {entry: True for entry, value in ideas if value is not None and _alike(seen, value)}
        if not _alike(seen, right):
            met |= {"numel misread": key == NUMEL, "norm misread": key == NORM}
            SAYS.refuse(met, key=key, seen=seen, where=where)


def _alike(seen: float, wanted: float) -> bool:
    """Equal to the rounding of float32: a norm is there to be looked at."""
    return math.isclose(seen, wanted, rel_tol=1e-6)


def _look_at_writes(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        count = len(report["written"])
        SAYS.refuse({"every rank writes": rank and count}, rank=rank, written=count, when=one.when)
    written, over = one.reports[0]["written"], one.reports[0]["overwritten"]
    names = [each["name"] for each in written]
    twice = sorted({name for name in names if names.count(name) > 1})
    SAYS.refuse({"written twice": twice}, twice=", ".join(twice), when=one.when)
    for each in written:
        _look_at_tensor(one, each)
    SAYS.refuse({"one buffer": over}, names=", ".join(over), when=one.when)
    lost = sorted(set(one.state) - set(names))
    are = f"{', '.join(lost)} {'are' if lost[1:] else 'is'} not written, {one.when}"
    SAYS.refuse({"not all written": lost}, are=are)


def _look_at_tensor(one: Trial, each: dict) -> None:
    name, tensor = each["name"], each["tensor"]
    about = {"name": name, "when": one.when}
    looks = {
        "a buffer of no file": name == "mask",
        "another name": name not in one.state,
        "not a tensor": tensor is None,
    }
    SAYS.refuse(looks, kind=each["kind"], **about)
    wanted = one.state[name].detach()
    has, owed = (f"{list(x.shape)} and {x.dtype}" for x in (tensor, wanted))
    looks = {
        "a placeholder is saved": wanted.numel() and not tensor.numel(),
        "a view is saved": tensor.isnan().any(),
        "another tensor": has != owed,
        "other values": not near(tensor, wanted),
    }
    SAYS.refuse(looks, has=has, wanted=owed, **about)


def _look_at_gathers(one: Trial) -> None:
    largest = max(p.numel() for p in one.parameters.values())
    for rank, report in enumerate(one.reports):
        twice = sorted(name for name, count in report["counts"].items() if count > 1)
        others = sum(report["sent"]["ops"].values()) - sum(report["counts"].values())
        looks = {
            "whole at once": report["most"] > largest,
            "gathered twice": twice,
            "more messages": others,
        }
        about = {"most": report["most"], "largest": largest, "others": others}
        SAYS.refuse(looks, rank=rank, when=one.when, twice=", ".join(twice), **about)


LOOKS = Looks(
    shape=_look_at_shape,
    value=_look_at_numbers,
    later_steps=_look_at_gathers,
    gradients=_look_at_writes,
)
TAKE_STOCK = Exercise(judge=judge_stock, **SAYS.about)
