"""`gather_from` of lesson 03: one forward, two right backwards, each within its budget.

An answer is tried with pieces of one length, then uneven ones along other dims, with the same work
behind it on every rank and with work of each rank's own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import CHECKS, Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_03 import trial as run
from course_lib.classroom.checks.lesson_03.gathers_at_once import (
    REPLICATED,
    SHARDED,
    STOPPED,
    try_at_once,
)
from course_lib.classroom.checks.lesson_03.pair_case import refuse_ready_made
from course_lib.classroom.checks.lesson_03.trial import numbers
from course_lib.classroom.checks.looking import (
    THREE,
    TWO,
    counted,
    fresh_seed,
    near,
    refuse_general,
)
from course_lib.ledger import forms

ITEM = 8  # bytes of a float64
SHAPE = [7, 9, 8]  # of the whole, but for the dim that is joined


class Trial(NamedTuple):
    """One call of the learner's function on a group, and what it gave on each rank."""

    members: list[int]
    seed: int
    whole: list[int]
    dim: int
    sizes: list[int]
    after: str
    reports: list[dict]
    when: str

    @property
    def n(self) -> int:
        return len(self.members)

    @property
    def x(self) -> Tensor:
        return numbers(self.seed, "x", 0, *self.whole)

    def piece(self, whole: Tensor, rank: int) -> Tensor:
        return whole.split(self.sizes, self.dim)[rank]

    def coming_back(self, rank: int) -> Tensor:
        """The gradient of the whole that comes back on one rank, alone."""
        name = "v" if self.after == REPLICATED else "w"
        owner = 0 if self.after == REPLICATED else rank
        return 2 * self.x * numbers(self.seed, name, owner, *self.whole)

    @property
    def summed(self) -> Tensor:
        return sum(self.coming_back(r) for r in range(self.n))

    def gives(self, expected: Callable[[int], Tensor]) -> bool:
        """Whether the gradient on every rank is what `expected(rank)` says."""
        return all(near(report["grad"], expected(r)) for r, report in enumerate(self.reports))

    @property
    def gives_sum(self) -> bool:
        return self.gives(lambda r: self.piece(self.summed, r))

    @property
    def gives_own_part(self) -> bool:
        return self.gives(lambda r: self.piece(self.coming_back(r), r))

    @property
    def right(self) -> bool:
        return self.gives_own_part if self.after == REPLICATED else self.gives_sum


def judge_gather(answer: Answer, judge: Judge) -> None:
    """Try gather_from; raise the Finding that explains best what is wrong."""
    refuse_ready_made(answer)
    judge.take(answer, f"{CHECKS}.lesson_03.trial")
    seed = fresh_seed()
    chance = random.Random(seed)
    one, (few, some, many) = 4 + seed % 3, sorted(chance.sample((1, 2, 4, 5), 3))

    def tried(members: list[int], dim: int, sizes: list[int]) -> list[Trial]:
        return _try(answer, judge, members, seed, dim, sizes)

    even = [*tried(THREE, 0, [one] * 3), *tried(TWO, 0, [one] * 2)]
    _look_at_gradients(answer, even)
    cases = [(THREE, 1, [few, many, some]), (TWO, -1, [many, few]), (THREE, -2, [some, 0, many])]
    try:
        uneven = [trial for case in cases for trial in tried(*case)]
    except Finding as finding:
        if finding.name not in STOPPED:
            raise
        raise Finding(
            "sizes not used",
            "Pieces of one length along dim 0 come out right; pieces of other lengths, one of them "
            "empty, or along another dim, do not. `sizes` has every rank's length along `dim`.\n"
            f"{finding.text.split(chr(10), 1)[-1]}",
        ) from None
    _look_at_gradients(answer, uneven)
    for trial in even + uneven:
        _look_at_budget(trial)
    try_at_once(answer, judge, seed, [few, many, some])


def _try(
    answer: Answer, judge: Judge, members: list[int], seed: int, dim: int, sizes: list[int]
) -> list[Trial]:
    """The same pieces with the same work on every rank after them, and with each rank's own."""
    when = f"{on(members)} with sizes {sizes} along dim {dim}"
    empty = [rank for rank, size in enumerate(sizes) if not size]
    how = {"members": members, "when": when, "empty": empty}
    reports = judge.trial(answer, run.both_gathered, seed, SHAPE, dim, sizes, **how)
    whole = list(SHAPE)
    whole[dim] = sum(sizes)
    trials = [
        Trial(members, seed, whole, dim, sizes, after, list(of_ranks), f"{when}, after={after!r}")
        for after, of_ranks in zip((REPLICATED, SHARDED), zip(*reports, strict=True), strict=True)
    ]
    for trial in trials:
        _look_at_results(trial)
    return trials


def _look_at_results(trial: Trial) -> None:
    """Refuse what is no gathered tensor, wherever its gradient goes."""
    refuse_none(trial.reports, trial.when, "the whole tensor")
    for rank, report in enumerate(trial.reports):
        if report["out"] is None:
            got = report["kind"]
            got = f"a tensor of shape {report['shape']}" if report["shape"] is not None else got
            raise Finding(
                "not the whole",
                f"Rank {rank} got {got} back {trial.when}; expected is one tensor of shape "
                f"{trial.whole} and dtype float64: all pieces joined along `dim`.",
            )
        if report["changed"]:
            raise Finding("input changed", f"x was changed on rank {rank}, {trial.when}.")
        if not report["lengths"]:
            raise Finding(
                "input changed",
                f"The list `sizes` was changed on rank {rank}, {trial.when}. It is the caller's: "
                "take a copy, `list(sizes)`, to work with.",
            )
        if not near(report["out"], trial.x):
            raise Finding(
                "pieces out of place",
                f"The result on rank {rank} is not the pieces joined in rank order, {trial.when}.",
            )
        if report["grad"] is None:
            raise Finding(
                "no way back",
                f"No gradient came back to x on rank {rank}, {trial.when}. The verbs of "
                "course_lib.collectives have none; a torch.autograd.Function gives them one.",
            )


def _look_at_gradients(answer: Answer, trials: list[Trial]) -> None:
    wrong = [trial for trial in trials if not trial.right]
    if not wrong:
        return
    if all(trial.n == 2 for trial in wrong):
        refuse_world_numbers(answer, wrong[0].when)
    copies = [trial for trial in wrong if trial.after == REPLICATED and trial.gives_sum]
    alone = [trial for trial in wrong if trial.after == SHARDED and trial.gives_own_part]
    if copies and alone:
        raise Finding(
            "exchanged",
            "The two backwards stand in each other's place. After the same work on every rank, "
            "each comes back with the whole gradient; after work of its own, with a part of it.",
        )
    if copies:
        raise Finding(
            "copies summed",
            f"With after={REPLICATED!r} the gradient is n times too large. Every rank went on "
            "alike, and what comes back on each is the full gradient already: a sum over ranks "
            "counts its n copies.",
        )
    if alone:
        raise Finding(
            "a sum left out",
            f"With after={SHARDED!r} each rank has the gradient of its own work alone. The other "
            "ranks worked with this piece as well: its gradient is the sum of all ranks' terms.",
        )
    _other_gradients(wrong[0])


def _other_gradients(trial: Trial) -> None:
    n, total = trial.n, trial.coming_back(0) if trial.after == REPLICATED else trial.summed
    if trial.gives(lambda r: trial.piece(total, r) / n):
        raise Finding(
            "mean",
            f"The gradient is divided by {n}, {trial.when}. What the ranks send back are parts of "
            "one gradient, and parts add up.",
        )
    seen = [report["grad"] for report in trial.reports]
    right = [trial.piece(total, rank) for rank in range(n)]
    refuse_general(seen, right, trial.when, what="gradient")
    fine = [rank for rank in range(n) if near(seen[rank], right[rank])]
    if trial.after == SHARDED and len(fine) == 1 < n - sum(not piece.numel() for piece in right):
        raise Finding(
            "on one rank only",
            f"The gradient is right on rank {fine[0]} alone, {trial.when}. The sum has to come to "
            "every rank, of its own piece: a reduce to one rank leaves the others without it.",
        )
    if any(trial.gives(lambda r, k=k: trial.piece(total, (r + k) % n)) for k in range(1, n)):
        raise Finding(
            "another rank's piece",
            f"Each rank has the gradient of another rank's piece, {trial.when}.",
        )
    raise Finding("gradient of the pieces", f"The gradient of x is not right, {trial.when}.")


def _look_at_budget(trial: Trial) -> None:
    """What is sent in each phase, and what is kept from one to the other."""
    payload = torch.Size(trial.whole).numel() * ITEM
    longest = payload // trial.whole[trial.dim] * max(trial.sizes)
    for rank, report in enumerate(trial.reports):
        own = trial.piece(trial.x, rank).numel() * ITEM
        there, back = report["there"], report["back"]
        may = forms.all_gather(trial.n, own)
        if not _once(there, "all_gather", may, (trial.n - 1) * longest):
            raise Finding(
                "more than the pieces",
                f"The numbers are right, but on the way there rank {rank} calls "
                f"{counted(there['ops'])} and has to send {there['bytes']} bytes ({trial.when}). "
                f"One all-gather of the pieces as they are takes {may}.",
            )
        if trial.after == REPLICATED and back["ops"]:
            raise Finding(
                "sent for nothing",
                f"The numbers are right, but on the way back rank {rank} calls "
                f"{counted(back['ops'])} ({trial.when}). Every rank has the whole gradient; its "
                "piece is there already.",
            )
        may = forms.reduce_scatter(payload, own)
        padded = (trial.n - 1) * longest
        if trial.after == SHARDED and not _once(back, "reduce_scatter", may, padded):
            raise Finding(
                "more than its piece",
                f"The numbers are right, but on the way back rank {rank} calls "
                f"{counted(back['ops'])} and has to send {back['bytes']} bytes ({trial.when}). It "
                f"needs the sum of its own piece only: a reduce-scatter takes {may}.",
            )
        if report["kept"]:
            raise Finding(
                "kept for nothing",
                f"The numbers are right, but {report['kept']} bytes of tensors are kept for the "
                f"backward on rank {rank} ({trial.when}): saved, on ctx, in a closure or in a "
                "name. Joining pieces is linear: its backward needs lengths, and no value of x.",
            )


def _once(report: dict, verb: str, may: int, padded: int) -> bool:
    """Whether one call sent no more than it has to; pieces for this verb may be `padded`."""
    most = max(may, padded * (verb in report["ops"]))
    return sum(report["ops"].values()) == 1 and report["bytes"] <= most


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
