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
from course_lib.classroom.checks.words import Words
from course_lib.ledger import forms

SAYS = Words("""
sizes not used: Pieces of one length along dim 0 come out right; pieces of other lengths, one of
  them empty, or along another dim, do not. `sizes` has every rank's length along `dim`.

  {what}
not the whole: Rank {rank} got {got} back {when}; expected is one tensor of shape {whole} and dtype
  float64: all pieces joined along `dim`.
input changed: The list `sizes` was changed on rank {rank}, {when}. Work with `list(sizes)`.
pieces out of place: The result on rank {rank} is not the pieces joined in rank order, {when}.
no way back: No gradient came back to x on rank {rank}, {when}. The verbs of course_lib.collectives
  have none; a torch.autograd.Function gives them one.
exchanged: The two backwards stand in each other's place. After the same work on every rank, each
  comes back with the whole gradient; after work of its own, with a part of it.
copies summed: With after='replicated' the gradient is n times too large. On every rank the full
  gradient comes back: a sum over ranks counts its n copies.
a sum left out: With after='sharded' each rank has the gradient of its own work alone. All ranks
  worked with this piece: its gradient is the sum of their terms.
mean: The gradient is divided by {n}, {when}. What the ranks send back are parts, and add up.
on one rank only: The gradient is right on rank {rank} alone, {when}. Every rank needs the sum, of
  its own piece: a reduce to one rank leaves the others without it.
another rank's piece: Each rank has the gradient of another rank's piece, {when}.
gradient of the pieces: The gradient of x is not right, {when}.
more than the pieces: The numbers are right, but on the way there rank {rank} calls {ops} and has to
  send {bytes} bytes ({when}). One all-gather of the pieces as they are takes {may}.
sent for nothing: The numbers are right, but on the way back rank {rank} calls {ops} ({when}). Every
  rank has the whole gradient; its piece is there already.
more than its piece: The numbers are right, but on the way back rank {rank} calls {ops} and has to
  send {bytes} bytes ({when}). It needs the sum of its own piece only: a reduce-scatter takes {may}.
kept for nothing: The numbers are right, but {kept} bytes of tensors are kept for the backward on
  rank {rank} ({when}): saved, on ctx, in a closure or in a name. Joining pieces is linear: its
  backward needs lengths, and no value of x.
another dtype: The pieces are {dtype}, and rank {rank} got {got} back {when}.
gradient written over: In h = 5 u + gather(x) the gradient of h goes to both branches, as one
  tensor, and the gather's backward wrote into it (rank {rank}, after={after!r}).
two at once: One gather after the other comes out right. Four of them, whose backwards begin after
  all forwards, as in any net, and of which one has a group of its own, do not. Does something of
  one call (in a class, a global name) reach another?

  {what}
""")
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


GATHER_FROM = Exercise(
    name="gather_from",
    title="A gather with both its backwards",
    points=4,
    judge=judge_gather,
    when_right=(
        "One all-gather on the way there. On the way back nothing at all where all ranks go on "
        "alike, and one reduce-scatter where each works on its own; along any dim, for uneven and "
        "empty pieces, with nothing kept in between."
    ),
    hints=(
        "The forward is the same in both cases. What comes back on a rank is the gradient of the "
        "whole tensor: in which of the two cases do the ranks come back with different ones?",
        "Where they come back with parts of a sum, a rank needs the sum, but of its own piece "
        "only. Which verb of lesson 01 gives that, and what does it take to cut unevenly?",
        "Put the group, dim, sizes and the choice on ctx; the backward returns one gradient for x "
        "and None for each of the other arguments.",
        "`dy.split(sizes, dim)` gives views of all pieces, also empty ones. The verbs take "
        "`group`, `dim` and `sizes` in this order.",
    ),
)
