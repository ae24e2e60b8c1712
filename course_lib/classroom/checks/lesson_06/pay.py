"""`pay_sums` of lesson 06: of ten gradients those that are partial sums, in one message.

An answer completes the gradients of a small decoder in three steps of training, on real ranks,
beside one process; what it did to each parameter is recognised, and the ledger holds it to the
budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks import bench, general
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.layers import agreed
from course_lib.classroom.checks.lesson_06 import decoder
from course_lib.classroom.checks.looking import (
    ITEM,
    THREE,
    TWO,
    Looks,
    another_step,
    counted,
    fresh_seed,
)
from course_lib.classroom.checks.words import Page
from course_lib.collectives.call import Group
from course_lib.layout import cut
from course_lib.ledger import forms

STEPS, RATE, BATCH = 3, 0.002, 8
TOLERANCE = 1e-10
RIGHT, ALONE, TIMES, MEAN, OTHER, ROUNDED = "right", "alone", "n times", "mean", "other", "rounded"
SAYS = Page("lesson_06/pay_sums")
ASK = {  # the partial sums, and what to ask where one was left as it was
    "positions": "a debt left #1",
    "norm.weight": "a debt left #2",
    "norm.bias": "a debt left #3",
    "q_norm.weight": "a debt left #4",
    "out.bias": "a debt left #5",
}


def numbers(length: int, seed: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Parameters, inputs and the gradients of the logits: the same on all ranks."""
    made = torch.Generator().manual_seed(seed * 31 + length)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64)

    parameters = {name: some(*shape) for name, shape in decoder.SHAPES.items()}
    xs = some(STEPS, BATCH, length, decoder.HIDDEN)
    return parameters, xs, some(STEPS, BATCH, length, decoder.CLASSES)


def gradients(parameters: Mapping[str, Tensor], logits: Callable, pull: Tensor) -> dict:
    """Of each parameter, where `logits(leaves)` gets `pull` from behind."""
    leaves = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
    logits(leaves).backward(pull)
    return {name: leaf.grad for name, leaf in leaves.items()}


def run(function: Callable, group: Group, length: int, seed: int) -> dict:
    """Three steps of `function(gradients, group)`; what it gave for each parameter, in words."""
    n, rank = group.size(), group.rank()
    dense, xs, pulls = numbers(length, seed)
    mine = {name: decoder.own(name, p, n, rank) for name, p in dense.items()}
    steps: list[dict] = []
    earlier: list[tuple[Tensor, Tensor]] = []  # what came back, and its elements at that time
    for x, pull in zip(xs, pulls, strict=True):
        own_x = x.split(cut(length, n), 1)[rank]
        right = gradients(dense, lambda p, x=x: decoder.dense(x, p), pull)
        part = gradients(mine, lambda p, x=own_x: decoder.forward(x, p, length, group), pull)
        given = {name: g.clone() for name, g in part.items()}
        out, facts = bench.watched(lambda given=given: function(given, group))
        step = {
            **facts,
            "kind": bench.kind(out),
            "problem": _problem(out, part),
            "emptied": sorted(set(part) - set(given)),
            "overwritten": not all(torch.equal(g, was) for g, was in earlier),
        }
        steps.append(step)
        fine = not step["problem"]
        if fine:
            here = {name: decoder.own(name, g, n, rank) for name, g in right.items()}
            named = {name: _named(out[name], part[name], g, n) for name, g in here.items()}
            off = {name: float((out[name] - g).norm() / g.norm()) for name, g in here.items()}
            step |= {"found": named, "off": off, "mixed": bool(_total(out).isclose(_total(right)))}
            earlier += [(g, g.detach().clone()) for g in out.values() if isinstance(g, Tensor)]
        if not agreed(fine, group):
            break
        dense = {name: p - RATE * right[name] for name, p in dense.items()}
        mine = {name: p - RATE * out[name].detach() for name, p in mine.items()}
    return {"steps": steps}


def _total(gradients: Mapping[str, Tensor]) -> Tensor:
    """Of all elements that needed a sum, whatever their order."""
    return torch.stack([gradients[name].detach().double().sum() for name in ASK]).sum()


def _problem(out: object, part: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Why these are not the ten gradients, as an entry, and of which parameter."""
    if not isinstance(out, Mapping):
        return "not a dictionary", ""
    for name in part:
        if not isinstance(out.get(name), Tensor):
            return "a gradient missing", name
    for name, g in part.items():
        if not bench.plain(out[name]) or (out[name].shape, out[name].dtype) != (g.shape, g.dtype):
            return "wrong shape", name
    return None


def _named(got: Tensor, part: Tensor, right: Tensor, n: int) -> str:
    """Whether a gradient is right, and if not, what it is instead."""
    readings = {RIGHT: right, ALONE: part, TIMES: n * right, MEAN: right / n}
    for name, wanted in readings.items():
        if bool(((got - wanted).abs() <= TOLERANCE * max(1.0, float(wanted.abs().max()))).all()):
            return name
    return ROUNDED if general.narrower(got.detach(), right) else OTHER


class Trial(NamedTuple):
    """The answer's steps on a group."""

    reports: list[dict]
    when: str

    @property
    def firsts(self) -> list[dict]:
        return [report["steps"][0] for report in self.reports]


def judge_pay(answer: Answer, judge: Judge) -> None:
    """Three steps on three ranks and on two, with lengths that do not divide."""
    judge.take(answer, __name__)
    seed = fresh_seed()
    cases = [(THREE, 7), (TWO, 5), (THREE, 2)]
    LOOKS.at(answer, (_try(answer, judge, *case, seed) for case in cases))


def _try(answer: Answer, judge: Judge, members: list[int], length: int, seed: int) -> Trial:
    when = f"{on(members)} with {length} tokens"
    empty = [rank for rank, tokens in enumerate(cut(length, len(members))) if not tokens]
    how = {"members": members, "when": when, "empty": empty}
    return Trial(judge.trial(answer, run, length, seed, **how), when)


def _look_at_returned(one: Trial) -> None:
    refuse_none(one.firsts, one.when, "the dictionary of gradients")
    for rank, first in enumerate(one.firsts):
        if first["problem"]:
            entry, name = first["problem"]
            raise SAYS(entry, rank=rank, kind=first["kind"], name=name, when=one.when)


def _look_at_dictionary(one: Trial) -> None:
    for rank, first in enumerate(one.firsts):
        for name in first["emptied"]:
            raise SAYS("input changed", name=name, rank=rank, when=one.when)


def _look_at_gradients(one: Trial) -> None:
    found, n = [first["found"] for first in one.firsts], len(one.firsts)
    words = {name: {each[name] for each in found} - {RIGHT} for name in decoder.SHAPES}
    cut = [name for name in decoder.CUT if words[name]]
    if cut:
        raise SAYS("summed what is cut", name=cut[0], when=one.when)
    for name in decoder.SHAPES:
        if not words[name]:
            continue
        far = [first["off"][name] for first in one.firsts]
        rank = far.index(max(far))
        off = f"On rank {rank} it is off by {far[rank]:.1%} of its size, {one.when}."
        fine = [r for r in range(n) if found[r][name] == RIGHT]
        holds = {
            "on one rank only": len(fine) == 1,
            "rounded on the way": words[name] == {ROUNDED},
            "mean": words[name] == {MEAN},
            "summed what was whole": words[name] == {TIMES} and name not in ASK,
            "nothing summed": words[name] == {ALONE} and all(words[owed] for owed in ASK),
            ASK.get(name): words[name] == {ALONE} and name in ASK,
            "summed twice": words[name] == {TIMES},
            "mixed up": all(first["mixed"] for first in one.firsts),
            "wrong gradient": True,
        }
        entry = next(entry for entry, so in holds.items() if so)
        raise SAYS(entry, name=name, n=n, off=off, fine=fine[0] if fine else "")


def _look_at_traffic(one: Trial) -> None:
    """One all-reduce, and no element in it that needs no sum."""
    fair = forms.all_reduce(len(one.reports), ITEM * sum(prod(decoder.SHAPES[k]) for k in ASK))
    for rank, first in enumerate(one.firsts):
        sent = counted(first["ops"])
        head = f"All ten gradients are right. Rank {rank} sends {sent}, {one.when}. "
        if set(first["ops"]) != {"all_reduce"}:
            raise SAYS("another message", head=head)
        if first["ops"]["all_reduce"] > 1:
            raise SAYS("a message for each", head=head)
        if first["bytes"] > fair + 1e-9:
            raise SAYS("more than is owed", head=head, carried=first["bytes"], fair=fair)


def _look_at_steps(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        for step, seen in enumerate(report["steps"]):
            if seen["overwritten"]:
                raise SAYS("one buffer for all calls", call=step + 1, rank=rank, when=one.when)
            if seen["problem"] or set(seen["found"].values()) != {RIGHT}:
                raise another_step(one, rank, step, "another later step")


LOOKS = Looks(
    returned=_look_at_returned,
    unchanged=_look_at_dictionary,
    value=_look_at_gradients,
    traffic=_look_at_traffic,
    later_steps=_look_at_steps,
)
PAY_SUMS = Exercise(judge=judge_pay, **SAYS.about)
