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
)  # fmt: skip
from course_lib.classroom.checks.lesson_14.waiting import is_a_hang
from course_lib.classroom.checks.looking import THREE, TWO, Looks, fresh_seed, near
from course_lib.classroom.checks.words import Page


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
        raise Finding(
            "not all ranks gather",
            f"A rank waits for others that do not come, {when}. A gather needs all "
            "ranks, in the same order, also where one of them alone writes: `if rank == 0` stands "
            f"inside the block, and not around it.\n{finding.text}",
        ) from None
    refuse_none(reports, when, "a dictionary")
    return Trial(reports, Small(sizes, seed), when, len(members))


def _look_at_shape(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        if report["kind"] != "dict":
            text = f"expected is a dictionary with {', '.join(KEYS)}."
            got = f"Rank {rank} got a {report['kind']} back, {one.when}"
            raise Finding("not a dictionary", f"{got}; {text}")
        if report["lost"]:
            lost = ", ".join(report["lost"])
            raise Finding("a key missing", f"Without {lost} on rank {rank}, {one.when}.")
        for key, value in report["values"].items():
            if isinstance(value, str) or isinstance(value, list) != (key in (PLACEHOLDERS, DECAY)):
                raise Finding(
                    "of another kind",
                    f"`{key}` on rank {rank} is {value!r}, {one.when}; {PLACEHOLDERS} and {DECAY} "
                    f"are lists of names, {NUMEL} and {NORM} are scalars.",
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
        raise Finding(
            "one element is no placeholder",
            f"`temperature` is tensor([1.]), as older releases of DeepSpeed printed a placeholder, "
            f"{where}. It is a parameter of one element whose value is 1, and is never sharded.",
        )
    if lost and not extra and all(name not in one.parameters for name in lost):
        raise Finding(
            "second name missed",
            f"`placeholders` is without {', '.join(lost)}, {where}: the head is the embedding by a "
            "second name. named_parameters() has a tensor once, a state_dict under every name.",
        )
    if not seen:
        text = "Between uses a parameter is of size 0: look before anything is gathered."
        raise Finding("looked at while whole", f"`placeholders` is empty, {where}. {text}")
    many, few = (", ".join(names) or "none" for names in (extra, lost))
    text = f"`placeholders` has too many ({many}), or too few ({few}), {where}."
    raise Finding("placeholders misread", text)


def _look_at_decay(one: Trial, seen: list[str], where: str) -> None:
    right = sorted(name for name, p in one.parameters.items() if p.ndim > 1)
    if seen == right:
        return
    if seen in ([], [n for n in right if n not in one.cut]):
        raise Finding(
            "dims of a placeholder",
            f"`decay` is {seen}, {where}: a placeholder has one dim, whatever its parameter has. "
            "An optimizer whose groups are made of `p.ndim` so would let no weight decay, and say "
            "nothing.",
        )
    if "positions" in seen or "head.weight" in seen:
        text = "asked are parameters, each once, by the name that named_parameters() has for it."
        raise Finding("more than the parameters", f"`decay` is {seen}, {where}: {text}")
    if sorted(set(seen)) == right:
        raise Finding("tied twice", f"`decay` has a parameter twice, {where}: {seen}.")
    if seen == [n for n in one.cut if n in one.parameters]:
        text = "A large parameter may have one dim, and a small one two."
        raise Finding("placeholders decay", f"`decay` has every placeholder, {where}. {text}")
    if seen == sorted(one.parameters):
        raise Finding("all decay", f"`decay` has every parameter, {where}: those of two dims.")
    raise Finding("decay misread", f"`decay` is {seen}, {where}; asked are parameters of two dims.")


def _look_at_count(one: Trial, values: dict, where: str) -> None:
    every = one.parameters
    stays = [p for p in every.values() if p.numel() <= SMALL]
    table = every["tokens.weight"]
    buffers = list(one.model.buffers())
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
            ("buffers counted", count([*every.values(), *buffers]),
             "A buffer is in the state_dict, and no parameter."),
            ("tied twice", count([*every.values(), table, *buffers]),
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
        name, _, text = next((i for i in ideas if _alike(values[key], i[1])), ("misread", 0, ""))
        if name:
            name = f"{key} {name}" if name == "misread" else name
            raise Finding(name, f"`{key}` is {values[key]:.6g}, {where}. {text}".rstrip())


def _alike(seen: float, wanted: float) -> bool:
    """Equal to the rounding of float32: a norm is there to be looked at."""
    return math.isclose(seen, wanted, rel_tol=1e-6)


def _look_at_writes(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        if rank and report["written"]:
            raise Finding(
                "every rank writes",
                f"Rank {rank} writes {len(report['written'])} tensors, {one.when}. One rank "
                "writes, the group's first.",
            )
    written = one.reports[0]["written"]
    names = [each["name"] for each in written]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Finding("written twice", f"Written more than once: {', '.join(twice)}, {one.when}.")
    for each in written:
        _look_at_tensor(one, each)
    lost = sorted(set(one.state) - set(names))
    if lost:
        are = f"{', '.join(lost)} {'are' if lost[1:] else 'is'} not written, {one.when}"
        text = "placeholders, what is not sharded, buffers and second names belong to it."
        raise Finding("not all written", f"Of the state_dict {are}: {text}")


def _look_at_tensor(one: Trial, each: dict) -> None:
    name, tensor = each["name"], each["tensor"]
    if name not in one.state:
        raise Finding("another name", f"The state_dict has no {name!r}, {one.when}.")
    wanted = one.state[name].detach()
    if tensor is None:
        raise Finding("not a tensor", f"{name} is written as a {each['kind']}, {one.when}.")
    shapes = f"{list(tensor.shape)} and {tensor.dtype}, {one.when}, and has {list(wanted.shape)}"
    if not tensor.numel():
        raise Finding(
            "a placeholder is saved",
            f"{name} is written with {shapes}. The file would load, and the weights would be lost.",
        )
    if bool(tensor.isnan().any()):
        raise Finding(
            "a view is saved",
            f"{name} was gathered when `write` was called, and its memory is gone when the file is "
            f"made, {one.when}: a block's end takes it away. Write a copy.",
        )
    if (tensor.dtype, tensor.shape) != (wanted.dtype, wanted.shape):
        text = f"{name} is written with {shapes} and {wanted.dtype}."
        raise Finding("another tensor", text)
    if not near(tensor, wanted):
        raise Finding("other values", f"{name} is written with other values, {one.when}.")


def _look_at_gathers(one: Trial) -> None:
    largest = max(p.numel() for p in one.parameters.values())
    for rank, report in enumerate(one.reports):
        if report["most"] > largest:
            raise Finding(
                "whole at once",
                f"All is right. On rank {rank} {report['most']} elements are gathered at once, "
                f"{one.when}, and the largest parameter has {largest}: a model that needs stage 3 "
                "does not fit. Gather one parameter at a time.",
            )
        twice = sorted(name for name, count in report["counts"].items() if count > 1)
        if twice:
            raise Finding(
                "gathered twice",
                f"All is right. {', '.join(twice)} came more than once on rank {rank}, "
                f"{one.when}: ask everything of a parameter while it is gathered.",
            )
        others = sum(report["sent"]["ops"].values()) - sum(report["counts"].values())
        if others:
            raise Finding(
                "more messages",
                f"All is right. Rank {rank} sends {others} messages beside the gathers, "
                f"{one.when}; after a gather every rank knows the same.",
            )


LOOKS = Looks(
    shape=_look_at_shape,
    value=_look_at_numbers,
    later_steps=_look_at_gathers,
    gradients=_look_at_writes,
)
TAKE_STOCK = Exercise(judge=judge_stock, **Page("lesson_14/take_stock").about)
