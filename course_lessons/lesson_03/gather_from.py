"""`gather_from` of lesson 03: one forward pass and two right backward passes, each within a budget.

It is tried with even pieces, with uneven pieces along other dims, and with concurrent gathers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from course_classroom.judge import bench, looking
from course_classroom.judge.answer import Answer
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on, refuse_none
from course_classroom.judge.layers import alone_in_a_group
from course_classroom.judge.looking import ITEM, THREE, TWO, alike, all_alike, all_near, near
from course_classroom.judge.words import Page
from course_lessons.lesson_00.trial import broke_off, told
from course_lessons.lesson_03 import kept
from course_lessons.lesson_03.trial import (
    FACTOR,
    leaf,
    nearly,
    numbers,
    refuse_ready_made,
    there_and_back,
)
from course_lib.ledger import forms

SAYS = Page(__file__, "gather_from")
SHAPE = [7, 9, 8]  # of the full tensor, except for the joined dim
REPLICATED, SHARDED = "replicated", "sharded"
WEIGHTS = {REPLICATED: "v", SHARDED: "w"}  # the name of the tensor that multiplies the gathered one


class Trial:
    """One call of the learner's function on a group, and its result on each rank."""

    def __init__(
        self, seed: int, whole: list, dim: int, sizes: list, after: str, reports: list, when: str
    ):
        self.whole, self.dim, self.sizes, self.after = whole, dim, sizes, after
        self.reports, self.when, self.n = reports, when, len(sizes)
        self.x = numbers(seed, "x", 0, *whole)
        self.grads = [report["grad"] for report in reports]
        terms = [2 * self.x * numbers(seed, WEIGHTS[after], r, *whole) for r in range(self.n)]
        wholes = {REPLICATED: terms, SHARDED: [sum(terms)] * self.n}  # of the gradients that arrive
        self.pieces = {
            way: [one.split(sizes, dim)[rank] for rank, one in enumerate(ones)]
            for way, ones in wholes.items()
        }

    def is_right(self, after: str) -> bool:
        """Return True if the gradients are right for this work after the gather."""
        held = all_near if after == self.after else all_alike
        return held(self.grads, self.pieces[after])


def judge_gather(answer: Answer, judge: Judge) -> None:
    """Try gather_from; raise the Finding that explains the error best."""
    refuse_ready_made(answer)
    judge.take(answer, __name__)
    seed = looking.fresh_seed()
    chance = random.Random(seed)
    one, (few, some, many) = 4 + seed % 3, sorted(chance.sample((1, 2, 4, 5), 3))

    def tried(members: list[int], dim: int, sizes: list[int]) -> list[Trial]:
        when = f"{on(members)} with sizes {sizes} along dim {dim}"
        empty = [rank for rank, size in enumerate(sizes) if not size]
        how = {"members": members, "when": when, "empty": empty}
        whole = list(SHAPE)
        whole[dim] = sum(sizes)
        reports = judge.trial(answer, both, seed, whole, dim, sizes, **how)
        trials = [
            Trial(seed, whole, dim, sizes, after, list(of_ranks), f"{when}, after={after!r}")
            for after, *of_ranks in zip(WEIGHTS, *reports, strict=True)
        ]
        for trial in trials:
            _look_at_results(trial)
        return trials

    even = [*tried(THREE, 0, [one] * 3), *tried(TWO, 0, [one] * 2)]
    _look_at_gradients(even)
    with told(SAYS, "sizes not used", broke_off):
        uneven = tried(THREE, 1, [few, many, some]) + tried(TWO, -1, [many, few])
        uneven += tried(THREE, -2, [some, 0, many])
    _look_at_gradients(uneven)
    for trial in even + uneven:
        _look_at_budget(trial)
    _try_at_once(answer, judge, seed, [few, many, some])


def both(
    function: Callable, group: dist.ProcessGroup, seed: int, whole: list, dim: int, sizes: list
) -> list[dict]:
    """Run two gathers, followed by the same work on every rank, then by different work."""

    def once(after: str) -> dict:
        r, lengths = group.rank(), list(sizes)
        x = leaf(numbers(seed, "x", r, *whole).split(sizes, dim)[r])
        weights = numbers(seed, WEIGHTS[after], r, *whole)

        def gather(x: Tensor) -> object:
            return function(x, group, dim, lengths, after)

        report = there_and_back(gather, x, weights, lambda out, w: out**2 * w)
        report |= {"lengths": lengths == sizes, "kept": 0}
        if 0 in sizes and report["grad"] is not None:  # for a different x that no other step needs
            again, more = (one * 1 for one in [x]), (group, dim, list(sizes), after)
            report["kept"], _ = bench.watched(lambda: kept.call(function, again, *more))
        return report

    return [once(after) for after in WEIGHTS]


def at_once(function: Callable, group: dist.ProcessGroup, seed: int, uses: list) -> list[dict]:
    """Run several gathers whose backward passes follow all forward passes, each with its own dtype,
    dim, sizes and consumer. A gather with one size uses a group of only this rank."""
    own, made, found = alone_in_a_group(), [], []
    for i, (dtype, whole, dim, sizes, after) in enumerate(uses):
        where, kind = own if len(sizes) == 1 else group, getattr(torch, dtype)
        x, w = (
            numbers(seed + i, name, where.rank(), *whole).to(kind) for name in ("x", WEIGHTS[after])
        )
        x, u = leaf(x.split(sizes, dim)[where.rank()]), leaf(torch.zeros_like(w))
        beside = FACTOR * u  # made before the gather, so autograd reaches it after the gather
        how = (where, dim, list(sizes), after)
        out, _ = bench.watched(lambda x=x, how=how: function(x, *how))
        made.append((x, u, out, (beside + out) * w))
    for x, u, out, product in made:
        bench.watched(lambda product=product: product.sum().backward())
        report = bench.described(out) | {"out": out.detach().double(), "beside": u.grad.double()}
        found.append({**report, "grad": None if x.grad is None else x.grad.double()})
    bench.end(own)
    return found


def _look_at_results(trial: Trial) -> None:
    """Refuse a result that is not the gathered tensor, regardless of its gradient."""
    refuse_none(trial.reports, trial.when, "the full tensor")
    looking.refuse_changed(trial, "x")
    for rank, report in enumerate(trial.reports):
        out = report["out"]
        named = {
            "not the full tensor": out is None,
            "input changed": not report["lengths"],
            "pieces out of place": not near(out, trial.x),
            "no gradient": report["grad"] is None,
        }
        got = looking.came_back(report)
        SAYS.refuse(named, rank=rank, when=trial.when, got=got, whole=trial.whole)


def _look_at_gradients(trials: list[Trial]) -> None:
    """Compare all gradients with the right gradients, and explain the first error."""
    wrong = [trial for trial in trials if not trial.is_right(trial.after)]
    if not wrong:
        return
    n, when, after = wrong[0].n, wrong[0].when, wrong[0].after
    seen, right = wrong[0].grads, wrong[0].pieces[after]
    copies = any(trial.after == REPLICATED and trial.is_right(SHARDED) for trial in wrong)
    alone = any(trial.after == SHARDED and trial.is_right(REPLICATED) for trial in wrong)
    named = {
        "exchanged": copies and alone,
        "copies summed": copies,
        "a sum left out": alone,
        "mean": all_alike(seen, [piece / n for piece in right]),
    }
    SAYS.refuse(named, n=n, when=when)
    looking.refuse_general(seen, right, when, what="gradient")
    fine = [rank for rank in range(n) if alike(seen[rank], right[rank])]
    some = n - sum(not piece.numel() for piece in right)
    named = {
        "on one rank only": after == SHARDED and len(fine) == 1 < some,
        "a different rank's piece": any(
            all_alike(seen, right[k:] + right[:k]) for k in range(1, n)
        ),
        "gradient of the pieces": True,
    }
    SAYS.refuse(named, rank=max(fine, default=0), when=when)


def _look_at_budget(trial: Trial) -> None:
    """Check the messages of each phase, and the memory kept between the phases."""
    payload = prod(trial.whole) * ITEM
    line = payload // trial.whole[trial.dim]  # bytes of a piece of length 1
    padded = (trial.n - 1) * line * max(trial.sizes)
    for rank, report in enumerate(trial.reports):
        own, there, back = line * trial.sizes[rank], report["there"], report["back"]
        may = {"there": forms.all_gather(trial.n, own), "back": forms.reduce_scatter(payload, own)}
        named = {
            "more than the pieces": not _once(there, "all_gather", may["there"], padded),
            "sent for nothing": trial.after == REPLICATED and back["ops"],
            "more than its piece": trial.after == SHARDED
            and not _once(back, "reduce_scatter", may["back"], padded),
            "kept for nothing": report["kept"],
        }
        about = {"rank": rank, "when": trial.when, "kept": report["kept"], "may": may}
        SAYS.refuse(named, there=there, back=back, **about)


def _once(report: dict, verb: str, may: int, padded: int) -> bool:
    """Return True if there was one call within its budget; `verb` allows the `padded` bytes."""
    most = max(may, padded * (verb in report["ops"]))
    return sum(report["ops"].values()) == 1 and report["bytes"] <= most


def _try_at_once(answer: Answer, judge: Judge, seed: int, sizes: list[int]) -> None:
    """Try gathers that are alive together, with different dims, dtypes and groups."""
    uses = [  # dtype, whole, dim, sizes, after; one size means a group of one rank
        ("float64", [sum(sizes)], 0, sizes, SHARDED),
        ("float64", [5, 6], 1, [6], REPLICATED),
        ("float64", [sum(sizes)], 0, sizes, REPLICATED),
        ("float32", [5, sum(sizes)], -1, sizes[::-1], REPLICATED),
    ]
    when = "with four gathers whose backward passes begin after all forward passes"
    with told(
        SAYS, "several calls at once", lambda f: broke_off(f) or f.name == "not called by all"
    ):
        reports = judge.trial(answer, at_once, seed, uses, members=THREE, when=when)
    for i, (dtype, whole, dim, lengths, after) in enumerate(uses):
        alone, alike = len(lengths) == 1, near if dtype == "float64" else nearly
        x = numbers(seed + i, "x", 0, *whole)
        ws = [numbers(seed + i, WEIGHTS[after], 0 if alone else r, *whole) for r in range(3)]
        full = sum(ws) if after == SHARDED else ws[0]
        for rank, report in enumerate(of_ranks[i] for of_ranks in reports):
            own = full.split(lengths, dim)[0 if alone else rank]
            named = {
                "wrong dtype": report["dtype"] != dtype,
                "gradient overwritten": not alike(report["beside"], FACTOR * ws[rank]),
                "several calls at once": not (
                    alike(report["out"], x) and alike(report["grad"], own)
                ),
            }
            what = f"The result of shape {whole} and dtype {dtype}, with after={after!r}, is wrong"
            about = {"dtype": dtype, "got": report["dtype"], "after": after, "when": when}
            SAYS.refuse(named, rank=rank, details=f"{what} on rank {rank}.", **about)


GATHER_FROM = Exercise(judge=judge_gather, **SAYS.about)
