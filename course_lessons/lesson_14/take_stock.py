"""`take_stock` of lesson 14: which tensors of a stage-3 model are placeholders, and a whole save.

Between uses a parameter is of size 0, as under DeepSpeed's stage 3, and computing with it is no
error. An answer is held against the whole model, against one gather for each, and against how much
is whole at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on, refuse_none
from course_classroom.judge.looking import THREE, TWO, Looks, fresh_seed, near
from course_classroom.judge.words import Page
from course_lessons.lesson_14 import stock_trial as trial
from course_lessons.lesson_14.stock_trial import (
    DECAY,
    KEYS,
    NORM,
    NUMEL,
    PLACEHOLDERS,
    SMALL,
    Small,
)

SAYS = Page(__file__, "take_stock")


class Trial(NamedTuple):
    reports: list[dict]
    model: Small
    when: str

    @property
    def state(self) -> dict[str, Tensor]:
        return self.model.state_dict(keep_vars=True)

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters()}

    @property
    def cut(self) -> list[str]:
        """The names of a state_dict whose tensors are placeholders between uses."""
        large = [name for name, x in self.state.items() if x.numel() > SMALL]
        return sorted(name for name in large if isinstance(self.state[name], nn.Parameter))


def judge_stock(answer: Answer, judge: Judge) -> None:
    """Try take_stock; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    h = 5 + seed % 4
    cases = ((THREE, (17 + seed % 5, h, h + 2)), (TWO, (19, h + 1, h + 5)))
    LOOKS.at(answer, (_tried(answer, judge, *case, seed) for case in cases))


def _tried(
    answer: Answer, judge: Judge, members: list[int], sizes: Sequence[int], seed: int
) -> Trial:
    when = on(members)
    try:
        reports = judge.trial(answer, trial.run, list(sizes), seed, members=members, when=when)
    except Finding as finding:
        SAYS.refuse({"not all ranks gather": finding.hangs}, when=when, text=finding.text)
        raise
    refuse_none(reports, when, "a dictionary")
    return Trial(reports, Small(*sizes, seed), when)


def _look_at_shape(one: Trial) -> None:
    forms = {
        "not a dictionary": lambda r: r["kind"] != "dict",
        "a key missing": lambda r: r["lost"],
    }
    SAYS.refuse_each(one.reports, forms, keys=", ".join(KEYS), when=one.when)
    for rank, report in enumerate(one.reports):
        for key, value in report["values"].items():
            listed = isinstance(value, list) == (key in (PLACEHOLDERS, DECAY))
            other = {"of another kind": isinstance(value, str) or not listed}
            SAYS.refuse(other, key=key, value=value, rank=rank, when=one.when)


def _look_at_numbers(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        values, where = report["values"], f"on rank {rank}, {one.when}"
        _look_at_placeholders(one, values[PLACEHOLDERS], where)
        _look_at_decay(one, values[DECAY], where)
        for key in (NUMEL, NORM):
            _look_at_count(one, key, values[key], where)


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
    SAYS.refuse(looks, where=where, lost=few, many=many, few=few)


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


def _look_at_count(one: Trial, key: str, seen: float, where: str) -> None:
    def count(tensors: Sequence[Tensor]) -> float:
        squares = sum(float(x.square().sum()) for x in tensors)
        return sum(x.numel() for x in tensors) if key == NUMEL else squares**0.5

    every, n = list(one.parameters.values()), len(one.reports)
    tied = [one.parameters["tokens.weight"]]
    saved = [x for x in one.state.values() if not isinstance(x, nn.Parameter)]
    right = count(every)
    ideas = [
        ("placeholders counted", count([p for p in every if p.numel() <= SMALL])),
        ("tied twice #2", count(every + tied)),
        ("buffers counted", count(every + list(one.model.buffers()))),
        ("buffers counted", count(every + saved)),
        ("tied twice #3", count(every + tied + saved)),
        ("what comes and goes alone", count([p for p in every if p.numel() > SMALL])),
        ("added over the ranks", right * (n if key == NUMEL else n**0.5)),
    ]
    if key == NORM:
        ideas += [("squared", right**2), ("norms added", sum(float(p.norm()) for p in every))]
    # A norm is there to be looked at: float32 is enough.
    met = {entry: True for entry, value in ideas if math.isclose(seen, value, rel_tol=1e-6)}
    if not math.isclose(seen, right, rel_tol=1e-6):
        met |= {"numel misread": key == NUMEL, "norm misread": key == NORM}
        SAYS.refuse(met, key=key, seen=seen, where=where)


def _look_at_writes(one: Trial) -> None:
    first = one.reports[0]
    looks = {"every rank writes": lambda report: report is not first and report["written"]}
    SAYS.refuse_each(one.reports, looks, when=one.when)
    names = [each["name"] for each in first["written"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    SAYS.refuse({"written twice": twice}, twice=", ".join(twice), when=one.when)
    for each in first["written"]:
        _look_at_tensor(one, each["name"], each["tensor"], each["kind"])
    over = [each["name"] for each in first["written"] if each["overwritten"]]
    lost = sorted(set(one.state) - set(names))
    are = f"{', '.join(lost)} {'are' if lost[1:] else 'is'} not written, {one.when}"
    looks = {"one buffer": over, "not all written": lost}
    SAYS.refuse(looks, names=", ".join(over), are=are, when=one.when)


def _look_at_tensor(one: Trial, name: str, tensor: Tensor | None, kind: str) -> None:
    about = {"name": name, "kind": kind, "when": one.when}
    looks = {
        "a buffer of no file": name == "mask",
        "another name": name not in one.state,
        "not a tensor": tensor is None,
    }
    SAYS.refuse(looks, **about)
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
        twice = ", ".join(sorted(name for name, count in report["counts"].items() if count > 1))
        looks = {
            "whole at once": report["most"] > largest,
            "gathered twice": twice,
            "more messages": report["others"],
        }
        about = {**report, "largest": largest, "twice": twice}
        SAYS.refuse(looks, rank=rank, when=one.when, **about)


LOOKS = Looks(
    shape=_look_at_shape,
    value=_look_at_numbers,
    later_steps=_look_at_gathers,
    gradients=_look_at_writes,
)
TAKE_STOCK = Exercise(judge=judge_stock, **SAYS.about)
