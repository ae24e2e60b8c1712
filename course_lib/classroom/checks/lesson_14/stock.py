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
from course_lib.classroom.checks.lesson_14.waiting import is_a_hang
from course_lib.classroom.checks.looking import THREE, TWO, Looks, fresh_seed, near
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_14/take_stock")
ASKED = {NUMEL: "the number of elements", NORM: "the root of the sum of the squares"}


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
        if not is_a_hang(finding):
            raise
        raise SAYS("not all ranks gather", when=when, text=finding.text) from None
    refuse_none(reports, when, "a dictionary")
    return Trial(reports, Small(sizes, seed), when, len(members))


def _look_at_shape(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        if report["kind"] != "dict":
            text = f"expected is a dictionary with {', '.join(KEYS)}."
            got = f"Rank {rank} got a {report['kind']} back, {one.when}"
            raise SAYS("not a dictionary", got=got, text=text)
        if report["lost"]:
            lost = ", ".join(report["lost"])
            raise SAYS("a key missing", lost=lost, rank=rank, when=one.when)
        for key, value in report["values"].items():
            if isinstance(value, str) or isinstance(value, list) != (key in (PLACEHOLDERS, DECAY)):
                raise SAYS(
                    "of another kind",
                    key=key,
                    rank=rank,
                    value=value,
                    when=one.when,
                    placeholders=PLACEHOLDERS,
                    decay=DECAY,
                    numel=NUMEL,
                    norm=NORM,
                )


def _look_at_numbers(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        where = f"on rank {rank}, {one.when}"
        _look_at_placeholders(one, report["values"][PLACEHOLDERS], where)
        _look_at_decay(one, report["values"][DECAY], where)
        _look_at_count(one, report["values"], where)


def _look_at_placeholders(one: Trial, seen: list[str], where: str) -> None:
    if seen == one.cut:
        return
    extra, lost = sorted(set(seen) - set(one.cut)), sorted(set(one.cut) - set(seen))
    if extra == ["temperature"] and not lost:
        raise SAYS("one element is no placeholder", where=where)
    if extra == ["history"] and not lost:
        raise SAYS("an empty buffer", where=where)
    if lost and not extra and all(name not in one.parameters for name in lost):
        raise SAYS("second name missed", lost=", ".join(lost), where=where)
    if not seen:
        text = "Between uses a parameter is of size 0: look before anything is gathered."
        raise SAYS("looked at while whole", where=where, text=text)
    many, few = (", ".join(names) or "none" for names in (extra, lost))
    text = f"`placeholders` has too many ({many}), or too few ({few}), {where}."
    raise Finding("placeholders misread", text)


def _look_at_decay(one: Trial, seen: list[str], where: str) -> None:
    more = sorted(name for name, p in one.parameters.items() if p.ndim > 1)
    right = [name for name in more if one.parameters[name].ndim == 2]
    if seen == right:
        return
    if seen == more:
        three = [name for name in more if name not in right]
        raise SAYS("more than two dims", three=", ".join(three), where=where)
    if seen in ([], [n for n in right if n not in one.cut]):
        raise SAYS("dims of a placeholder", seen=seen, where=where)
    if "positions" in seen or "head.weight" in seen:
        text = "asked are parameters, each once, by the name that named_parameters() has for it."
        raise SAYS("more than the parameters", seen=seen, where=where, text=text)
    if sorted(set(seen)) == right:
        raise SAYS("tied twice", where=where, seen=seen)
    if seen == [n for n in one.cut if n in one.parameters]:
        text = "A large parameter may have one dim, and a small one two."
        raise SAYS("placeholders decay", where=where, text=text)
    if seen == sorted(one.parameters):
        raise SAYS("all decay", where=where)
    raise SAYS("decay misread", seen=seen, where=where)


def _look_at_count(one: Trial, values: dict, where: str) -> None:
    every = one.parameters
    stays = [p for p in every.values() if p.numel() <= SMALL]
    table = every["tokens.weight"]
    buffers = list(one.model.buffers())
    saved = [x for x in one.state.values() if not isinstance(x, torch.nn.Parameter)]
    counts = {
        NUMEL: lambda tensors: sum(x.numel() for x in tensors),
        NORM: lambda tensors: sum(float((x * x).sum()) for x in tensors) ** 0.5,
    }
    for key, count in counts.items():
        right, n = count(list(every.values())), one.n
        ideas = [
            ("placeholders counted", count(stays),
             "A parameter that is not gathered counts as nothing: 0 elements, and a norm of 0."),
            ("tied twice", count([*every.values(), table]),
             "The embedding is the head too, and one parameter."),
            *(("buffers counted", count([*every.values(), *some]),
               "A buffer is in the state_dict, and no parameter.") for some in (buffers, saved)),
            ("tied twice", count([*every.values(), table, *saved]),
             "That is every entry of the state_dict: the tied one twice, and a buffer."),
            ("what comes and goes alone", count([p for p in every.values() if p.numel() > SMALL]),
             "Parameters that are not sharded count as well."),
            ("added over the ranks", right * (n if key == NUMEL else n**0.5),
             "Every rank has all of a gathered parameter: nothing is added over ranks."),
        ]  # fmt: skip
        if key == NORM:
            added = sum(float(x.norm()) for x in every.values())
            ideas.append(("squared", right**2, "The root of the sum of squares is asked for."))
            ideas.append(("norms added", added, "The squares are added, and then comes the root."))
        ideas = [("", right, ""), *ideas]
        asked = f"Asked is {ASKED[key]} of all parameters, each of them gathered and taken once."
        other = ("misread", 0, asked)
        name, _, text = next((i for i in ideas if _alike(values[key], i[1])), other)
        if name:
            name = f"{key} {name}" if name == "misread" else name
            raise Finding(name, f"`{key}` is {values[key]:.6g}, {where}. {text}".rstrip())


def _alike(seen: float, wanted: float) -> bool:
    """Equal to the rounding of float32: a norm is there to be looked at."""
    return math.isclose(seen, wanted, rel_tol=1e-6)


def _look_at_writes(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        if rank and report["written"]:
            raise SAYS(
                "every rank writes", rank=rank, written=len(report["written"]), when=one.when
            )
    written = one.reports[0]["written"]
    names = [each["name"] for each in written]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SAYS("written twice", twice=", ".join(twice), when=one.when)
    for each in written:
        _look_at_tensor(one, each)
    over = one.reports[0]["overwritten"]
    SAYS.refuse({"one buffer": over}, names=", ".join(over), when=one.when)
    lost = sorted(set(one.state) - set(names))
    if lost:
        are = f"{', '.join(lost)} {'are' if lost[1:] else 'is'} not written, {one.when}"
        text = "placeholders, what is not sharded, buffers and second names belong to it."
        raise SAYS("not all written", are=are, text=text)


def _look_at_tensor(one: Trial, each: dict) -> None:
    name, tensor = each["name"], each["tensor"]
    if name == "mask":
        raise SAYS("a buffer of no file", name=name, when=one.when)
    if name not in one.state:
        raise SAYS("another name", name=name, when=one.when)
    wanted = one.state[name].detach()
    if tensor is None:
        raise SAYS("not a tensor", name=name, kind=each["kind"], when=one.when)
    shapes = f"{list(tensor.shape)} and {tensor.dtype}, {one.when}, and has {list(wanted.shape)}"
    if wanted.numel() and not tensor.numel():
        raise SAYS("a placeholder is saved", name=name, shapes=shapes)
    if bool(tensor.isnan().any()):
        raise SAYS("a view is saved", name=name, when=one.when)
    if (tensor.dtype, tensor.shape) != (wanted.dtype, wanted.shape):
        text = f"{name} is written with {shapes} and {wanted.dtype}."
        raise Finding("another tensor", text)
    if not near(tensor, wanted):
        raise SAYS("other values", name=name, when=one.when)


def _look_at_gathers(one: Trial) -> None:
    largest = max(p.numel() for p in one.parameters.values())
    for rank, report in enumerate(one.reports):
        if report["most"] > largest:
            raise SAYS(
                "whole at once", rank=rank, most=report["most"], when=one.when, largest=largest
            )
        twice = sorted(name for name, count in report["counts"].items() if count > 1)
        if twice:
            raise SAYS("gathered twice", twice=", ".join(twice), rank=rank, when=one.when)
        others = sum(report["sent"]["ops"].values()) - sum(report["counts"].values())
        if others:
            raise SAYS("more messages", rank=rank, others=others, when=one.when)


LOOKS = Looks(
    shape=_look_at_shape,
    value=_look_at_numbers,
    later_steps=_look_at_gathers,
    gradients=_look_at_writes,
)
TAKE_STOCK = Exercise(judge=judge_stock, **SAYS.about)
