"""`pay_sums` of lesson 06: one all-reduce of the partial sums among ten gradients."""

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
ASK = {  # the partial sums, and the question if one was not summed
    "positions": "partial sum left #1",
    "norm.weight": "partial sum left #2",
    "norm.bias": "partial sum left #3",
    "q_norm.weight": "partial sum left #4",
    "out.bias": "partial sum left #5",
}
Tensors = dict[str, Tensor]


def numbers(length: int, seed: int) -> tuple[Tensors, Tensor, Tensor]:
    """Draw parameters, inputs and the logits' gradients, which are equal on all ranks."""
    made = torch.Generator().manual_seed(seed * 31 + length)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64)

    parameters = {name: some(*shape) for name, shape in decoder.SHAPES.items()}
    xs = some(STEPS, BATCH, length, decoder.HIDDEN)
    return parameters, xs, some(STEPS, BATCH, length, decoder.CLASSES)


def gradients(parameters: Tensors, logits: Callable, pull: Tensor) -> Tensors:
    """Return the gradient of each parameter if `logits(leaves)` receives `pull`."""
    leaves = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
    logits(leaves).backward(pull)
    return {name: leaf.grad for name, leaf in leaves.items()}


def step(parameters: Tensors, grads: Tensors) -> Tensors:
    return {name: p - RATE * grads[name] for name, p in parameters.items()}


def run(function: Callable, group: Group, length: int, seed: int) -> dict:
    """Run three steps of `function(gradients, group)`; report inputs and outputs, the first step's
    at the top level."""
    n, rank = group.size(), group.rank()
    whole, xs, pulls = numbers(length, seed)
    mine = {name: decoder.own(name, p, n, rank) for name, p in whole.items()}
    steps: list[dict] = []
    earlier: list[tuple[Tensor, Tensor]] = []  # an earlier result, and its elements at that time
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
    """Return ("", "") for ten valid gradients, or otherwise an entry and a parameter's name."""
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
    """Try three steps on three ranks and on two ranks, with lengths that do not divide evenly."""
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
        looks = {  # one all-reduce, and only elements that need a sum
            "wrong collective": lambda r: set(r["ops"]) != {"all_reduce"},
            "a message for each": lambda r: r["ops"]["all_reduce"] > 1,
            "unneeded elements sent": lambda r, fair=fair: r["bytes"] > fair + 1e-9,
        }
        SAYS.refuse_each(reports, looks, fair=fair, when=when)
    for reports, when in trials:
        for rank, report in enumerate(reports):
            for number, one in enumerate(report["steps"]):
                if one["overwritten"]:
                    raise SAYS("one buffer for all calls", call=number + 1, rank=rank, when=when)
                pairs = [(g, one["right"][name]) for name, g in one.get("back", {}).items()]
                if not pairs or not all(starmap(near, pairs)):
                    raise SAYS("wrong later step", step=number + 1, rank=rank, when=when)


def look_at_gradients(reports: list[dict], when: str) -> None:
    """Name the error in the first wrong gradient; sharded gradients must not change."""
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
        off = f"On rank {rank} it differs from the dense gradient by {far[rank]:.1%}, {when}."
        fine = [r for r in range(n) if alike(seen[r], wanted[r])]
        alone, times = all_alike(seen, part[name]), all_alike(seen, [n * g for g in wanted])
        holds = {
            "changed a sharded gradient": name in decoder.CUT,
            "on one rank only": len(fine) == 1,
            "mean": all_alike(seen, [g / n for g in wanted]),
            "summed a complete gradient": times and name not in ASK,
            "nothing summed": alone and all(all_alike(back[owed], part[owed]) for owed in ASK),
            ASK.get(name, ""): alone and name in ASK,
            "summed twice": times,
            "mixed up": all_alike(sums(back), sums(right)),
            "wrong gradient": True,
        }
        SAYS.refuse(holds, name=name, n=n, off=off, fine=fine and fine[0], when=when)


PAY_SUMS = Exercise(judge=judge_pay, **SAYS.about)
