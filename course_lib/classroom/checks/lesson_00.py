"""What right means for the exercises of lesson 00: where a cell runs, and a first collective.

Both are there to meet a check: its three outcomes, its hints, a mistake that is called by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.thought import Mistake, Thought, compare

TOLERANCE = 1e-10  # float64


def judge_mean(answer: Answer, judge: Judge) -> None:
    """Try mean_over_ranks on three ranks, then on two that are not the notebook's first two."""
    judge.take(answer)
    seed = int.from_bytes(os.urandom(3), "big")
    for members in ([0, 1, 2], [1, 2]):
        length, n = 5 + seed % 4, len(members)
        when = on(members)
        x = f"bench.inputs({length}, {seed}, __trial__.rank())"
        call = f"bench.report(mean_over_ranks, {x}, __trial__)"
        reports = judge.trial(answer, call, members, when)
        inputs = torch.stack([bench.inputs(length, seed, r) for r in range(n)])  # (n, length)
        _look_at_results(reports, when)
        _look_at_values(answer, reports, inputs, when)
        _look_at_traffic(reports, inputs, when)


def _look_at_results(reports: list[dict], when: str) -> None:
    refuse_none(reports, when, "the mean")
    for rank, report in enumerate(reports):
        if report["out"] is None:
            raise Finding(
                "wrong shape",
                f"What rank {rank} got back {when} is not shaped like x. The mean is taken over "
                "the ranks, element by element: it has as many elements as x, of x's dtype.",
            )
        if report["changed"]:
            raise Finding(
                "input changed",
                f"Your function changed its input x on rank {rank}. `dist.all_reduce` works in "
                "place: it writes the sum into the tensor that it gets. Give it a copy.",
            )


def _look_at_values(answer: Answer, reports: list[dict], inputs: torch.Tensor, when: str) -> None:
    n, results = len(reports), [report["out"] for report in reports]

    def everywhere(expected: torch.Tensor) -> bool:
        return all(_same(out, expected) for out in results)

    right = [_same(out, inputs.mean(0)) for out in results]
    if all(right):
        return
    if everywhere(inputs.sum(0)):
        raise Finding(
            "sum",
            f"Every rank has the sum {when}. An all-reduce adds up; a mean is that sum divided by "
            "the number of ranks in the group.",
        )
    if all(_same(out, x) for out, x in zip(results, inputs, strict=True)):
        raise Finding(
            "nobody asked",
            "Each rank gets its own x back: nothing was sent. Without a collective no rank "
            "can know what the others hold.",
        )
    if all(_same(out, x / n) for out, x in zip(results, inputs, strict=True)):
        raise Finding(
            "divided, not added",
            "Each rank has its own x divided by the number of ranks. Dividing is half of a mean; "
            "the other half is the sum over the ranks, and it is missing.",
        )
    if any(right):
        raise Finding(
            "not on every rank",
            "Some rank has the mean and some other has not: that is a reduce. Every rank has to "
            "end with it.",
        )
    if n == 2:
        refuse_world_numbers(answer, when)
    for wrong_n in (2, 3):
        if everywhere(inputs.sum(0) / wrong_n):
            raise Finding(
                "a fixed number of ranks",
                f"The sum is divided by {wrong_n} {when}. Ask the group how many ranks it has: "
                "group.size().",
            )
    if everywhere(inputs.sum(0) / inputs.shape[1]):
        raise Finding(
            "divided by the elements",
            "You divided by the number of elements of x. The mean is taken over the ranks: divide "
            "by how many of them the group has.",
        )
    if everywhere(inputs.mean(0) / n):
        raise Finding("divided twice", "The mean is divided by the number of ranks once more.")
    raise Finding("wrong values", f"What comes back {when} is not the mean of the ranks' x.")


def _look_at_traffic(reports: list[dict], inputs: torch.Tensor, when: str) -> None:
    n, whole = inputs.shape[0], inputs[0].nbytes
    allowed = -(-2 * (n - 1) * whole // n)
    for rank, report in enumerate(reports):
        if report["bytes"] > allowed:
            raise Finding(
                "too much sent",
                f"The mean is right, but {when} rank {rank} had to send {report['bytes']} bytes "
                f"where one all-reduce sends {allowed}. A rank needs the sum, not every x.",
            )


def _same(out: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(out, expected, rtol=0, atol=TOLERANCE)


RANKS = 3  # in the question


def judge_who_knows(given: Mapping) -> None:
    """Hold the numbers against what each kind of cell does, and its misreadings by name."""
    right = {"a": RANKS, "b": 1, "c": 0, "d": RANKS, "e": 2}
    everywhere = dict.fromkeys(right, RANKS)
    notebook_counts = {name: number + 1 for name, number in right.items()}
    compare(
        given,
        right,
        (
            Mistake(
                "one rank is not all",
                "`%%ranks 0` runs its cell on rank 0 and on no other.",
                {**right, "b": RANKS},
            ),
            Mistake(
                "a range counts both ends",
                "`%%ranks 1-2` names both ends: rank 1 and rank 2.",
                {**right, "e": 1},
            ),
            Mistake(
                "the notebook is no rank",
                "A cell without `%%ranks` runs in the notebook's own process. No rank hears of "
                "its variables until they are pushed.",
                {**right, "c": RANKS},
            ),
            Mistake(
                "push reaches all",
                "`push` copies a variable of the notebook to every rank.",
                {**right, "d": 0},
            ),
            Mistake(
                "push reaches all",
                "`push` copies to every rank, not to one.",
                {"d": 1},
            ),
            Mistake(
                "the notebook is no rank",
                "The notebook's own process is not one of the ranks: count the ranks alone.",
                notebook_counts,
            ),
            Mistake(
                "variables are not shared",
                "Not every cell runs on every rank, and no variable travels by itself: look at "
                "the first line of each cell.",
                everywhere,
            ),
        ),
        apart=True,
    )


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
