"""`master_step` of lesson 09: a step of ZeRO-1 in bfloat16, with master weights of a rank's shard.

Six steps whose updates are mostly smaller than a rounding: master weights, values and count are
held against what they should be and what known wrong ideas give; ledger and meter say what it cost.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_09 import master_trial as trial
from course_lib.classroom.checks.lesson_09.each import refuse_each
from course_lib.classroom.checks.looking import ITEM, THREE, TWO, fresh_seed
from course_lib.classroom.checks.words import Page

SLACK = 16  # numbers of 8 bytes beside the two messages: a count
SAYS = Page("lesson_09/master_step")
READINGS = ("right", "gradients not summed", "a sum for a mean", "divided twice")
READINGS += ("the master copy forgets #1", "the master copy forgets #2", "gradients added up")
READINGS += ("another shard",)


class Reading:
    """Master weights of all elements, as one reading of the exercise would have them."""

    def __init__(self, entry: str, values: Tensor):
        self.entry, self.total = entry, torch.zeros(len(values))
        self.part = nn.Parameter(values.float())
        self.optimizer = trial.optimizer_of(self.part)

    def step(self, own: Tensor) -> None:
        """`own` (n, padded) are the ranks' gradients."""
        n, mean = len(own), own.mean(0)
        pieces = own.view(n, n, -1)  # of rank, of owner
        self.total += mean
        self._round("the master copy forgets #1")
        self.part.grad = {
            "gradients not summed": torch.cat([pieces[rank, rank] for rank in range(n)]),
            "a sum for a mean": mean * n,
            "divided twice": mean / n,
            "another shard": pieces[:, 0].mean(0).repeat(n),
            "gradients added up": self.total.clone(),
        }.get(self.entry, mean)
        self.optimizer.step()
        self._round("the master copy forgets #2")

    def _round(self, entry: str) -> None:
        if self.entry == entry:
            self.part.data = self.part.data.bfloat16().float()


def judge_master(answer: Answer, judge: Judge) -> None:
    """Six steps on three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    for members in (THREE, TWO):
        n, when = len(members), on(members)
        told = (seed, n == len(THREE))  # measured where no earlier call has left anything
        every = judge.trial(answer, trial.train, *told, members=members, when=when)
        values, total = trial.start(seed, n)
        known, lost, before = [Reading(entry, values) for entry in READINGS], 0, values.float()
        for k in range(trial.STEPS):
            reports, where = [of_rank[k] for of_rank in every], f"{when}, in step {k + 1}"
            own = trial.gradients(seed, n, k).float()
            for one in known:
                one.step(own)
            refuse_none(reports, where, "a count")
            look_at_masters(reports, known, before, where)
            after = torch.cat([one["master"] for one in reports])
            look_at_numbers(reports, before.bfloat16(), after.bfloat16(), where)
            counts = counts_of(before, after, own, total, lost)
            look_at_counts(reports, counts, where)
            lost, before = lost + counts[0][1][0], after
            look_at_cost(reports, len(values), where)


def look_at_cost(reports: list[dict], numbers: int, where: str) -> None:
    """Two messages of bf16, a momentum, and a gradient that may stay; a few small tensors."""
    part, shard = (len(reports) - 1) / len(reports), 4 * numbers // len(reports)
    right, count = 2 * part * 2 * numbers, 2 * part * ITEM * SLACK
    looks = {
        "too much sent": lambda one: one["bytes"] > right + count,
        "states of the whole": lambda one: (
            one["kept"] > 3 * shard + 256 or max(one["largest"], one["state"]) > shard + 64
        ),
        "kept between calls #2": lambda one: one["mixed"],
    }
    refuse_each(SAYS, reports, looks, right=right, shard=shard, where=where)


def look_at_masters(reports: list[dict], known: list[Reading], before: Tensor, where: str) -> None:
    """The reading that explains the master weights of all ranks, where they are not right."""
    refuse_each(SAYS, reports, {"another parameter": lambda one: not one["knows"]}, where=where)
    seen, n, right = [one["master"] for one in reports], len(reports), known[0].part

    def fits(wanted: Tensor, rank: int, rest: float = 0.02) -> bool:
        """As a reading has it, up to the rounding of a gradient in 16 bits."""
        moved = (right - before).detach().abs().chunk(n)[rank].max()
        piece = wanted.detach().chunk(n)[rank]
        return seen[rank] is not None and bool(
            (seen[rank] - piece).abs().max() <= rest * moved + (1e-9 if rest else 0)
        )

    ranks = range(n)
    if all(fits(right, rank) for rank in ranks):
        return
    entry = next((one.entry for one in known if all(fits(one.part, r) for r in ranks)), None)
    if all(fits(before, rank, 0.0) for rank in ranks):
        entry = "no update"
    off = next(rank for rank in ranks if not fits(right, rank))
    name, text = SAYS.of(entry or "wrong master copy", rank=off)
    raise Finding(name, f"The master weights are not what they should be {where}. {text}")


def look_at_numbers(reports: list[dict], old: Tensor, new: Tensor, where: str) -> None:
    """The model's values: all master weights rounded, in the memory where the model reads them."""
    n, seen = len(reports), [one["numbers"] for one in reports]
    refuse_each(SAYS, reports, {"another memory": lambda one: one["numbers"] is None}, where=where)
    if all(torch.equal(x, new) for x in seen):
        return
    if all(torch.equal(x.chunk(n)[r], new.chunk(n)[r]) for r, x in enumerate(seen)):
        raise SAYS("not gathered", where=where)
    if all(torch.equal(x, old) for x in seen):
        raise SAYS("not written back", where=where)
    raise SAYS("wrong numbers", where=where)


def counts_of(
    before: Tensor, after: Tensor, own: Tensor, total: int, lost: int
) -> list[tuple[str, list[int]]]:
    """What each rank would count, first rightly and then under each wrong idea."""
    n, moved, same = len(own), after != before, after.bfloat16() == before.bfloat16()
    each = (moved & same).view(n, -1).sum(1).tolist()
    alike = (
        ("right", moved & same),
        ("what rests is not lost", same),
        ("what rests is not lost", same[:total]),
        ("small moves not counted", ~torch.isclose(after, before) & same),
        ("the gradient looked at", (own.mean(0) != 0) & same),
        ("everything that moved", moved),
        ("the others counted", ~same),
    )
    right, *found = [(entry, [int(which.sum())] * n) for entry, which in alike]
    so_far = [lost + sum(each)] * n
    ranks = [("a rank's own count #1", each), ("a rank's own count #2", [n * k for k in each])]
    return [right, *ranks, *found, ("kept between calls #1", so_far)]


def look_at_counts(reports: list[dict], counts: list[tuple[str, list[int]]], where: str) -> None:
    """The idea that explains all ranks' counts, where they are not right."""
    refuse_each(SAYS, reports, {"not a count": lambda one: one["out"] is None}, where=where)
    seen, right = [one["out"] for one in reports], counts[0][1]
    entry = next((entry for entry, count in counts if count == seen), None)
    if entry == "right":
        return
    if not entry and sum(map(int.__eq__, seen, right)) == 1:
        entry = "on one rank only"
    if not entry and not any(seen):
        entry = "nothing counted"
    if not entry and all(abs(a - b) <= b / 64 for a, b in zip(seen, right, strict=True)):
        entry = "rounded on the way"
    name, text = SAYS.of(entry or "wrong count")
    raise Finding(name, f"The step is right, and the count is not, {where}. {text}")


MASTER = Exercise(judge=judge_master, **SAYS.about)
