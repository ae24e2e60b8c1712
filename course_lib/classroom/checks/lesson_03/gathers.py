"""`gather_from` of lesson 03: one forward, two right backwards, each within its budget.

An answer is tried with pieces of one length, then uneven ones along other dims, with the same work
after it on every rank and with work of each rank's own; then with several gathers at once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_03 import gathers_run
from course_lib.classroom.checks.lesson_03.gathers_run import REPLICATED, SHARDED, owner
from course_lib.classroom.checks.lesson_03.trial import FACTOR, nearly, numbers, refuse_ready_made
from course_lib.classroom.checks.looking import (
    ITEM,
    THREE,
    TWO,
    all_near,
    came_back,
    counted,
    fresh_seed,
    near,
    refuse_changed,
    refuse_general,
)
from course_lib.classroom.checks.words import Page
from course_lib.ledger import forms

SAYS = Page("lesson_03/gather_from")
SHAPE = [7, 9, 8]  # of the whole, but for the dim that is joined
STOPPED = ("raised", "deadlock")


class Trial(NamedTuple):
    """One call of the learner's function on a group, and what it gave on each rank."""

    seed: int
    whole: list[int]
    dim: int
    sizes: list[int]
    after: str
    reports: list[dict]
    when: str

    @property
    def n(self) -> int:
        return len(self.sizes)

    @property
    def x(self) -> Tensor:
        return numbers(self.seed, "x", 0, *self.whole)

    def pieces(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """Each rank's piece of what it has."""
        cut = [whole.split(self.sizes, self.dim) for whole in wholes]
        return [pieces[rank] for rank, pieces in enumerate(cut)]

    @property
    def terms(self) -> list[Tensor]:
        """The gradient of the whole that comes back on each rank."""
        weights = [numbers(self.seed, *owner(self.after, r), *self.whole) for r in range(self.n)]
        return [2 * self.x * w for w in weights]

    @property
    def own_part(self) -> bool:
        """Whether each rank has its piece of what came back on it alone."""
        return all_near(self.grads, self.pieces(self.terms))

    @property
    def summed(self) -> bool:
        return all_near(self.grads, self.pieces([sum(self.terms)] * self.n))

    @property
    def right(self) -> bool:
        return self.own_part if self.after == REPLICATED else self.summed

    @property
    def grads(self) -> list[Tensor | None]:
        return [report["grad"] for report in self.reports]


def judge_gather(answer: Answer, judge: Judge) -> None:
    """Try gather_from; raise the Finding that explains best what is wrong."""
    refuse_ready_made(answer)
    judge.take(answer, gathers_run.__name__)
    seed = fresh_seed()
    chance = random.Random(seed)
    one, (few, some, many) = 4 + seed % 3, sorted(chance.sample((1, 2, 4, 5), 3))

    def tried(members: list[int], dim: int, sizes: list[int]) -> list[Trial]:
        when = f"{on(members)} with sizes {sizes} along dim {dim}"
        empty = [rank for rank, size in enumerate(sizes) if not size]
        how = {"members": members, "when": when, "empty": empty}
        reports = judge.trial(answer, gathers_run.both, seed, SHAPE, dim, sizes, **how)
        whole = list(SHAPE)
        whole[dim] = sum(sizes)
        trials = [
            Trial(seed, whole, dim, sizes, after, list(of_ranks), f"{when}, after={after!r}")
            for after, *of_ranks in zip((REPLICATED, SHARDED), *reports, strict=True)
        ]
        for trial in trials:
            _look_at_results(trial)
        return trials

    even = [*tried(THREE, 0, [one] * 3), *tried(TWO, 0, [one] * 2)]
    _look_at_gradients(answer, even)
    cases = [(THREE, 1, [few, many, some]), (TWO, -1, [many, few]), (THREE, -2, [some, 0, many])]
    try:
        uneven = [trial for case in cases for trial in tried(*case)]
    except Finding as finding:
        if finding.name not in STOPPED:
            raise
        raise SAYS("sizes not used", what=finding.text.split("\n", 1)[-1]) from None
    _look_at_gradients(answer, uneven)
    for trial in even + uneven:
        _look_at_budget(trial)
    _try_at_once(answer, judge, seed, [few, many, some])


def _look_at_results(trial: Trial) -> None:
    """Refuse what is no gathered tensor, wherever its gradient goes."""
    refuse_none(trial.reports, trial.when, "the whole tensor")
    refuse_changed(trial, "x")
    x = trial.x
    for rank, report in enumerate(trial.reports):
        about = {"rank": rank, "when": trial.when}
        if report["out"] is None:
            raise SAYS("not the whole", got=came_back(report), whole=trial.whole, **about)
        if not report["lengths"]:
            raise SAYS("input changed", **about)
        if not near(report["out"], x):
            raise SAYS("pieces out of place", **about)
        if report["grad"] is None:
            raise SAYS("no way back", **about)


def _look_at_gradients(answer: Answer, trials: list[Trial]) -> None:
    wrong = [trial for trial in trials if not trial.right]
    if not wrong:
        return
    if all(trial.n == 2 for trial in wrong):
        refuse_world_numbers(answer, wrong[0].when)
    copies = any(trial.after == REPLICATED and trial.summed for trial in wrong)
    alone = any(trial.after == SHARDED and trial.own_part for trial in wrong)
    for entry, seen in {
        "exchanged": copies and alone,
        "copies summed": copies,
        "a sum left out": alone,
    }.items():
        if seen:
            raise SAYS(entry)
    _other_gradients(wrong[0])


def _other_gradients(trial: Trial) -> None:
    n, seen, when = trial.n, trial.grads, trial.when
    total = trial.terms[0] if trial.after == REPLICATED else sum(trial.terms)
    right = trial.pieces([total] * n)
    if all_near(seen, [piece / n for piece in right]):
        raise SAYS("mean", n=n, when=when)
    refuse_general(seen, right, when, what="gradient")
    fine = [rank for rank in range(n) if near(seen[rank], right[rank])]
    if trial.after == SHARDED and len(fine) == 1 < n - sum(not piece.numel() for piece in right):
        raise SAYS("on one rank only", rank=fine[0], when=when)
    if any(all_near(seen, right[k:] + right[:k]) for k in range(1, n)):
        raise SAYS("another rank's piece", when=when)
    raise SAYS("gradient of the pieces", when=when)


def _look_at_budget(trial: Trial) -> None:
    """What is sent in each phase, and what is kept from one to the other."""
    payload = prod(trial.whole) * ITEM
    line = payload // trial.whole[trial.dim]  # bytes of a piece of length 1
    padded = (trial.n - 1) * line * max(trial.sizes)
    for rank, report in enumerate(trial.reports):
        own, there, back = line * trial.sizes[rank], report["there"], report["back"]
        about = {"rank": rank, "when": trial.when}
        may = forms.all_gather(trial.n, own)
        if not _once(there, "all_gather", may, padded):
            about |= {"ops": counted(there["ops"]), "bytes": there["bytes"], "may": may}
            raise SAYS("more than the pieces", **about)
        ops = counted(back["ops"])
        if trial.after == REPLICATED and back["ops"]:
            raise SAYS("sent for nothing", ops=ops, **about)
        may = forms.reduce_scatter(payload, own)
        if trial.after == SHARDED and not _once(back, "reduce_scatter", may, padded):
            raise SAYS("more than its piece", ops=ops, bytes=back["bytes"], may=may, **about)
        if report["kept"]:
            raise SAYS("kept for nothing", kept=report["kept"], **about)


def _once(report: dict, verb: str, may: int, padded: int) -> bool:
    """Whether one call sent no more than it has to; pieces for this verb may be `padded`."""
    most = max(may, padded * (verb in report["ops"]))
    return sum(report["ops"].values()) == 1 and report["bytes"] <= most


def _try_at_once(answer: Answer, judge: Judge, seed: int, sizes: list[int]) -> None:
    """Gathers that are alive together, of other dims, dtypes and groups."""
    uses = [  # dtype, whole, dim, sizes, after; what has one size is in a group of one rank
        ("float64", [sum(sizes)], 0, sizes, SHARDED),
        ("float64", [5, 6], 1, [6], REPLICATED),
        ("float64", [sum(sizes)], 0, sizes, REPLICATED),
        ("float32", [5, sum(sizes)], -1, sizes[::-1], REPLICATED),
    ]
    when = "with four gathers whose backwards begin after all forwards"
    try:
        reports = judge.trial(answer, gathers_run.at_once, seed, uses, members=THREE, when=when)
    except Finding as finding:
        if finding.name not in (*STOPPED, "not called by all"):
            raise
        raise SAYS("two at once", what=finding.text) from None
    for i, (dtype, whole, dim, lengths, after) in enumerate(uses):
        alone, alike = len(lengths) == 1, near if dtype == "float64" else nearly
        x = numbers(seed + i, "x", 0, *whole)
        ws = [numbers(seed + i, *owner(after, 0 if alone else r), *whole) for r in range(3)]
        full = sum(ws) if after == SHARDED else ws[0]
        for rank, report in enumerate(of_ranks[i] for of_ranks in reports):
            own = full.split(lengths, dim)[0 if alone else rank]
            if report["dtype"] != dtype:
                raise SAYS("another dtype", dtype=dtype, rank=rank, got=report["dtype"], when=when)
            if not alike(report["beside"], FACTOR * ws[rank]):
                raise SAYS("gradient written over", rank=rank, after=after)
            if not alike(report["out"], x) or not alike(report["grad"], own):
                what = f"of shape {whole} and {dtype}, with after={after!r}"
                raise SAYS("two at once", what=f"One {what}, is not right on rank {rank}.")


GATHER_FROM = Exercise(judge=judge_gather, **SAYS.about)
