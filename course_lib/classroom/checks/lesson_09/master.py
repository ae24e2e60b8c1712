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
from course_lib.classroom.checks.words import Words

SLACK = 16  # numbers of 8 bytes beside the two messages: a count
SAYS = Words("""
another parameter: The optimizer of rank {rank} no longer knows `master` {where}. Leave its groups
  as they are, and give `master` a gradient.
no update: The master weights have not moved.
gradients not summed: Each rank has used its own gradient alone, and not the mean over the ranks.
a sum for a mean: The gradient is n times too large: a sum over the ranks, and not a mean.
divided twice: The gradient is n times too small.
the master copy forgets #1: They were read off the bf16 values before the update, and all that is
  too small for 16 bits was lost: the master weights alone keep it.
the master copy forgets #2: They were rounded to bf16 after the update, and all that is too small
  for 16 bits was lost: the master weights alone keep it.
gradients added up: This gradient was added to those of earlier steps. A step replaces
  `master.grad`.
another shard: The gradient is that of the first rank's shard, on every rank.
wrong master copy: Those of rank {rank} differ from what the mean of the gradients gives.
another memory: `numbers` is no longer in the same memory {where}: the model's parameters are views
  of that memory. Write into it.
not gathered: Each rank has written its own shard back, and not those of the others, {where}: the
  next forward would use old parameters.
not written back: The master weights are right, and the model's bf16 values are the old ones
  {where}.
wrong numbers: The master weights are right, and the model's values are not those rounded to bf16,
  {where}.
not a count: Rank {rank} got a {kind} back {where}; a whole number is wanted.
a rank's own count #1: It is the count of this rank's shard, and not that over all elements.
a rank's own count #2: It is this rank's count times n. The other ranks have lost other updates.
what rests is not lost: Every element that has not changed is counted. Some had nothing to lose: the
  master weight has not moved either.
small moves not counted: A master weight that moved by very little is said not to have moved.
  `isclose` has a tolerance: is it still *equal*?
the gradient looked at: Elements with a gradient are counted. One without moves as well, by its
  momentum: compare the master weights before and after.
kept between calls #1: It is the count of all steps so far, and not of this one.
everything that moved: Every element whose master weight has moved is counted. Lost is an update
  that the bf16 value does not show.
the others counted: These are the updates that were *not* lost.
on one rank only: It is right on one rank, and every rank needs it.
nothing counted: It is 0. Is the number before the step compared with itself, after it was written
  over?
rounded on the way: It is nearly right: bf16 holds whole numbers up to 256 and then every second
  one, and a sum of them is rounded again.
wrong count: Lost are those whose master weight has moved and whose bf16 value has not.
kept between calls #2: In between, the function stepped another model, without gradients, {where},
  and on rank {rank} it was changed or counted. Keep nothing between calls.
too much sent: Rank {rank} had to send {bytes} bytes {where}; a reduce-scatter and an all-gather of
  bf16 are {right:.0f}, and a count is a few more. An all-reduce of gradients contains an
  all-gather, and master weights are not sent at all.
states of the whole: All values are right, and rank {rank} keeps {kept} bytes more after a step than
  before {where}, {largest} of them in one piece; the momentum of its shard is {shard}. It runs and
  does not shard: ZeRO-1 keeps nothing of the parameters that other ranks update.
""")
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


MASTER = Exercise(
    name="master_step",
    title="An update that is not lost",
    points=4,
    judge=judge_master,
    when_right=(
        "Most of the updates were too small for 16 bits, and none was lost: after six steps the "
        "master copies were those of float32, the model's values those copies rounded, on three "
        "ranks and on two; each rank kept states of its shard alone, and sent two moves of bf16."
    ),
    hints=(
        "Which of the ranks' gradients does a rank need in order to update its shard, and which "
        "verb gives it just that?",
        "The optimizer knows `master` alone and reads `master.grad`, in float32, for this shard.",
        "`numbers` is overwritten in the end. What do you have to remember of it for the count?",
        "An update is lost where the master copy has moved and the rounded value is what it was.",
    ),
)
