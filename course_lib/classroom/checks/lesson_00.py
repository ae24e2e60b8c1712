"""What right means for the exercises of lesson 00: where a cell runs, and a first collective.

Both are there to meet a check: its three outcomes, its hints, a mistake that is called by name.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_01 import trial
from course_lib.classroom.checks.looking import (
    THREE,
    TWO,
    came_back,
    fresh_seed,
    ideas,
    near,
    refuse_idea,
)
from course_lib.classroom.checks.thought import Mistake, Thought, compare
from course_lib.classroom.checks.words import Words

RANKS = 3  # in the question
SAYS = Words("""
wrong shape: What rank {rank} got back {when} is {got}, and not like x. The mean is taken over the
  ranks, element by element: it has x's shape and dtype.
input changed: Your function changed its input x on rank {rank}. `dist.all_reduce` works in place:
  it writes the sum into the tensor that it gets. Give it a copy.
sum: Every rank has the sum. An all-reduce adds up; a mean is that sum divided by the number of
  ranks in the group.
nobody asked: Each rank gets its own x back: nothing was sent. Without a collective no rank can know
  what the others hold.
divided, not added: Each rank has its own x divided by the number of ranks. Dividing is half of a
  mean; the other half is the sum over the ranks, and it is missing.
not on every rank: Some rank has the mean and some other has not: that is a reduce. Every rank has
  to end with it.
a fixed number of ranks: The sum is divided by another number of ranks than the group has. Ask it:
  group.size().
divided by the elements: You divided by the number of elements of x. The mean is taken over the
  ranks: divide by how many of them the group has.
divided twice: The mean is divided by the number of ranks once more.
wrong values #1: Those are the largest values of the ranks. A mean is made of their sum.
wrong values #2: What comes back {when} is not the mean of the ranks' x.
whole numbers: The mean is right but for its fraction, which is cut off.
too much sent: The mean is right, but {when} rank {rank} had to send {sent} bytes where one
  all-reduce sends {allowed}. A rank needs the sum, not every x.
wrong number: You have counted two ranks, as many as a notebook has by default. Here are three.
one rank is not all: `%%ranks 0` runs its cell on rank 0 and on no other.
a range counts both ends: `%%ranks 1-2` names both ends: rank 1 and rank 2.
a range is not all: `%%ranks 1-2` runs its cell on these two ranks: not on rank 0, and not in the
  notebook.
the notebook is no rank #1: A cell without `%%ranks` runs in the notebook's own process. No rank
  hears of its variables until they are pushed.
the notebook is no rank #2: The notebook's own process is not one of the ranks: count the ranks
  alone.
push reaches all: `push` copies a variable of the notebook to every rank, not to one.
variables are not shared: Not every cell runs on every rank, and no variable travels by itself: look
  at the first line of each cell.
which rank, not how many: That is the number of a rank. Asked for is on how many ranks the variable
  is.
its value: That is what the variable holds. Asked for is on how many ranks it is there.
""")


def judge_mean(answer: Answer, judge: Judge) -> None:
    """Try mean_over_ranks on three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    for members, shape, dtype in (
        (THREE, [7 + 6 * (seed % 2)], "float64"),
        (TWO, [4, 5 + 2 * (seed % 2)], "float32"),
    ):
        shapes, where = [[shape] * len(members)] * 2, [on(members)] * 2
        for call in trial.calls(answer, judge, members, shapes, seed, dtype, where):
            _look_at_results(call.reports, call.when)
            _look_at_values(answer, call)
            _look_at_traffic(call)
            trial.refuse_overwritten(call.reports, "The mean", call.when)


def _look_at_results(reports: list[dict], when: str) -> None:
    refuse_none(reports, when, "the mean")
    for rank, report in enumerate(reports):
        if report["out"] is None:
            raise SAYS("wrong shape", rank=rank, when=when, got=came_back(report))
        if report["changed"]:
            raise SAYS("input changed", rank=rank)


def _look_at_values(answer: Answer, call: trial.Call) -> None:
    """Hold what came back against the mean, and against what a misreading gives on every rank."""
    n, when, total = call.n, call.when, call.total
    results = [report["out"] for report in call.reports]
    right = [near(out, total / n) for out in results]
    if all(right):
        return
    trial.refuse_second(call.number > 0, when)
    own = {"nobody asked": call.inputs, "divided, not added": [x / n for x in call.inputs]}
    refuse_idea(results, ideas(SAYS, {"sum": [total] * n, **own}), when)
    if any(right):
        raise SAYS("not on every rank")
    if n == 2:
        refuse_world_numbers(answer, when)
    largest = torch.stack(call.inputs).max(0).values
    wrong: list[tuple[str, Tensor]] = [
        *(("a fixed number of ranks", total / k) for k in (2, 3, 4)),
        ("divided by the elements", total / total.numel()),
        ("divided twice", total / n**2),
        *(("wrong values #1", largest / k) for k in (1, n)),
        ("whole numbers", (total / n).floor()),
        ("whole numbers", (total / n).round()),
    ]
    refuse_idea(results, ideas(SAYS, [(entry, [value] * n) for entry, value in wrong]), when)
    raise SAYS("wrong values #2", when=when)


def _look_at_traffic(call: trial.Call) -> None:
    x, n = call.inputs[0], call.n
    allowed = 2 * (n - 1) * -(-x.numel() // n) * x.itemsize  # in chunks that may be filled up
    for rank, report in enumerate(call.reports):
        sent = report["bytes"]
        if sent > allowed:
            raise SAYS("too much sent", when=call.when, rank=rank, sent=sent, allowed=allowed)


def judge_who_knows(given: Mapping) -> None:
    """Hold the numbers against what each kind of cell does, and its misreadings by name."""
    right = {"a": RANKS, "b": 1, "c": 0, "d": RANKS, "e": 2}
    if given["a"] == given["d"] == 2:  # as many as a notebook has that asks for no number
        raise SAYS("wrong number")
    mistakes = (
        ("one rank is not all", {"b": RANKS}),
        ("a range counts both ends", {"e": 1}),
        ("the notebook is no rank #1", {"c": RANKS}),
        ("push reaches all", {"d": 0}),
        ("push reaches all", {"d": 1}),
        ("a range is not all", {"e": RANKS}),
        ("the notebook is no rank #2", {name: number + 1 for name, number in right.items()}),
        ("variables are not shared", dict.fromkeys(right, RANKS)),
        ("which rank, not how many", {"b": 0}),
        ("its value", {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}),
    )
    known = tuple(Mistake(*SAYS.of(entry), values) for entry, values in mistakes)
    compare(given, right, known, apart=True)


EXERCISES = (
    Thought(
        name="who_knows",
        title="Who knows what",
        points=1,
        fields=("a", "b", "c", "d", "e"),
        judge=judge_who_knows,
        when_right=(
            "A cell runs where its first line says, and a variable stays where it was made, "
            "until something carries it over."
        ),
        hints=(
            "Take the cells one at a time. Where does each run?",
            "A cell without `%%ranks` runs in the notebook. Is the notebook a rank?",
            "`push` is the only line here that carries a variable from one process to others.",
        ),
    ),
    Exercise(
        name="mean_over_ranks",
        title="A mean over the ranks",
        points=2,
        judge=judge_mean,
        when_right=(
            "The mean on every rank, on three ranks and on two, with one all-reduce, and the "
            "caller's x as it was."
        ),
        hints=(
            "A mean is a sum divided by a number. Which collective gives every rank the sum?",
            "`dist.all_reduce(y, group=group)` writes the sum into y. The x that came in belongs "
            "to the caller, so y has to be a copy of it.",
            "The number to divide by is how many ranks the group has, which is not always how "
            "many the notebook has.",
        ),
    ),
)
