"""`pay_sums` of lesson 06: of ten gradients those that are partial sums, in one message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import starmap
from math import prod

import torch
from torch import Tensor

from course_classroom.judge import bench, looking
from course_classroom.judge.answer import Answer
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on, refuse_none
from course_classroom.judge.layers import agreed
from course_classroom.judge.looking import ITEM, THREE, TWO, alike, all_alike, all_near, near
from course_classroom.judge.words import Page
from course_lessons.lesson_06 import decoder
from course_lib.collectives.call import Group
from course_lib.layout import cut
from course_lib.ledger import forms

STEPS, RATE, BATCH = 3, 0.002, 8
SAYS = Page(__file__, "pay_sums")
ASK = {  # the partial sums, and what to ask where one was left as it was
    "positions": "a debt left #1",
    "norm.weight": "a debt left #2",
    "norm.bias": "a debt left #3",
    "q_norm.weight": "a debt left #4",
    "out.bias": "a debt left #5",
}
Tensors = dict[str, Tensor]


def numbers(length: int, seed: int) -> tuple[Tensors, Tensor, Tensor]:
    """Parameters, inputs and the gradients of the logits: the same on all ranks."""
    made = torch.Generator().manual_seed(seed * 31 + length)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64)

    parameters = {name: some(*shape) for name, shape in decoder.SHAPES.items()}
    xs = some(STEPS, BATCH, length, decoder.HIDDEN)
    return parameters, xs, some(STEPS, BATCH, length, decoder.CLASSES)


def gradients(parameters: Tensors, logits: Callable, pull: Tensor) -> Tensors:
    """Of each parameter, where `logits(leaves)` gets `pull` from behind."""
    leaves = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
    logits(leaves).backward(pull)
    return {name: leaf.grad for name, leaf in leaves.items()}


def step(parameters: Tensors, grads: Tensors) -> Tensors:
    return {name: p - RATE * grads[name] for name, p in parameters.items()}


def run(function: Callable, group: Group, length: int, seed: int) -> dict:
    """Three steps of `function(gradients, group)`: what went in and came back, the first on top."""
    n, rank = group.size(), group.rank()
    whole, xs, pulls = numbers(length, seed)
    mine = {name: decoder.own(name, p, n, rank) for name, p in whole.items()}
    steps: list[dict] = []
    earlier: list[tuple[Tensor, Tensor]] = []  # what came back, and its elements at that time
    for x, pull in zip(xs, pulls, strict=True):
        own = x.split(cut(length, n), 1)[rank]
        part = gradients(mine, lambda p, x=own: decoder.forward(x, p, length, group), pull)
        given = {name: g.clone() for name, g in part.items()}
        out, facts = bench.watched(lambda given=given: function(given, group))
        problem, name = _problem(out, part, given)
        about = {
            "kind": bench.kind(out),
            "problem": problem,
            "name": name,
            "part": part,
            "sent": looking.counted(facts["ops"]),
            "overwritten": not all(torch.equal(*pair) for pair in earlier),
        }
        steps.append(facts | about)
        if not agreed(not problem, group):
            break
        dense = gradients(whole, lambda p, x=x: decoder.dense(x, p), pull)
        back = {name: out[name].detach().clone() for name in part}
        right = {name: decoder.own(name, g, n, rank) for name, g in dense.items()}
        steps[-1] |= {"back": back, "right": right}
        earlier += [(out[name], g) for name, g in back.items()]
        mine, whole = step(mine, back), step(whole, dense)
    return {**steps[0], "steps": steps}


def _problem(out: object, part: Tensors, given: Tensors) -> tuple[str, str]:
    """Why these are not the ten gradients, as an entry or "", and of which parameter."""
    if not isinstance(out, Mapping):
        return "not a dictionary", ""
    for name, g in part.items():
        got = out.get(name)
        if not isinstance(got, Tensor):
            return "a gradient missing", name
        if not bench.plain(got) or (got.shape, got.dtype) != (g.shape, g.dtype):
            return "wrong shape", name
    gone = part.keys() - given.keys()
    return ("input changed", min(gone)) if gone else ("", "")


def judge_pay(answer: Answer, judge: Judge) -> None:
    """Three steps on three ranks and on two, with lengths that do not divide."""
    judge.take(answer, __name__)
    seed, trials = looking.fresh_seed(), []
    for members, length in ((THREE, 7), (TWO, 5), (THREE, 2)):
        when = f"{on(members)} with {length} tokens"
        empty = [rank for rank, tokens in enumerate(cut(length, len(members))) if not tokens]
        how = {"members": members, "when": when, "empty": empty}
        reports = judge.trial(answer, run, length, seed, **how)
        refuse_none(reports, when, "the dictionary of gradients")
        for rank, report in enumerate(reports):
            if report["problem"]:
                raise SAYS(report["problem"], **report, rank=rank, when=when)
        look_at_gradients(reports, when)
        trials.append((reports, when))
    owed = ITEM * sum(prod(decoder.SHAPES[name]) for name in ASK)
    for reports, when in trials:
        fair = forms.all_reduce(len(reports), owed)
        looks = {  # one all-reduce, and no element in it that needs no sum
            "another message": lambda r: set(r["ops"]) != {"all_reduce"},
            "a message for each": lambda r: r["ops"]["all_reduce"] > 1,
            "more than is owed": lambda r, fair=fair: r["bytes"] > fair + 1e-9,
        }
        SAYS.refuse_each(reports, looks, fair=fair, when=when)
    for reports, when in trials:
        for rank, report in enumerate(reports):
            for number, one in enumerate(report["steps"]):
                if one["overwritten"]:
                    raise SAYS("one buffer for all calls", call=number + 1, rank=rank, when=when)
                pairs = [(g, one["right"][name]) for name, g in one.get("back", {}).items()]
                if not pairs or not all(starmap(near, pairs)):
                    raise SAYS("another later step", step=number + 1, rank=rank, when=when)


def look_at_gradients(reports: list[dict], when: str) -> None:
    """Name what was done to the first gradient that is not right; to those that are cut, nothing
    should be."""
    n = len(reports)
    back, part, right = (
        {name: [report[what][name] for report in reports] for name in decoder.SHAPES}
        for what in ("back", "part", "right")
    )

    def sums(of: Mapping) -> list[float]:
        return [sum(float(of[name][rank].sum()) for name in ASK) for rank in range(n)]

    wrong = [name for name in decoder.SHAPES if not all_near(back[name], right[name])]
    for name in sorted(wrong, key=lambda name: name not in decoder.CUT)[:1]:
        seen, wanted = back[name], right[name]
        far = [float((a - b).norm() / b.norm()) for a, b in zip(seen, wanted, strict=True)]
        rank = far.index(max(far))
        off = f"On rank {rank} it is off by {far[rank]:.1%} of its size, {when}."
        fine = [r for r in range(n) if alike(seen[r], wanted[r])]
        alone, times = all_alike(seen, part[name]), all_alike(seen, [n * g for g in wanted])
        holds = {
            "summed what is cut": name in decoder.CUT,
            "on one rank only": len(fine) == 1,
            "mean": all_alike(seen, [g / n for g in wanted]),
            "summed what was whole": times and name not in ASK,
            "nothing summed": alone and all(all_alike(back[owed], part[owed]) for owed in ASK),
            ASK.get(name, ""): alone and name in ASK,
            "summed twice": times,
            "mixed up": all_alike(sums(back), sums(right)),
            "wrong gradient": True,
        }
        SAYS.refuse(holds, name=name, n=n, off=off, fine=fine and fine[0], when=when)


PAY_SUMS = Exercise(judge=judge_pay, **SAYS.about)
