"""What right means for the exercises of lesson 00: where a cell runs, and a first collective.

Both are there to meet a check: its three outcomes, its hints, a mistake that is called by name.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_01.trial import (
    CALLS,
    numbers,
    refuse_overwritten,
    refuse_second,
    twice,
)
from course_lib.classroom.checks.looking import all_near, came_back, fresh_seed, near
from course_lib.classroom.checks.thought import Mistake, Thought, compare


def judge_mean(answer: Answer, judge: Judge) -> None:
    """Try mean_over_ranks on three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, "course_lib.classroom.checks.lesson_01.trial")
    seed = fresh_seed()
    sizes = {3: ([7 + 6 * (seed % 2)], "float64"), 2: ([4, 5 + 2 * (seed % 2)], "float32")}
    for members in ([0, 1, 2], [1, 2]):
        n, when = len(members), on(members)
        shape, dtype = sizes[n]
        shapes = [[shape] * n for _ in CALLS]
        calls = judge.trial(answer, twice, shapes, seed, dtype, members=members, when=when)
        for k, said in enumerate(CALLS):
            reports = [of_rank[k] for of_rank in calls]
            inputs = torch.stack([numbers(shape, seed + k, r, dtype) for r in range(n)])
            _look_at_results(reports, when + said)
            if k and not all_near([report["out"] for report in reports], [inputs.mean(0)] * n):
                refuse_second(k > 0, when + said)
            _look_at_values(answer, reports, inputs, when)
            _look_at_traffic(reports, inputs, when)
            refuse_overwritten(reports, "The mean", when + said)


def _look_at_results(reports: list[dict], when: str) -> None:
    refuse_none(reports, when, "the mean")
    for rank, report in enumerate(reports):
        if report["out"] is None:
            raise Finding(
                "wrong shape",
                f"What rank {rank} got back {when} is {came_back(report)}, and not like x. The "
                "mean is taken over the ranks, element by element: it has x's shape and dtype.",
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
        return all_near(results, [expected] * n)

    right = [near(out, inputs.mean(0)) for out in results]
    if all(right):
        return
    if everywhere(inputs.sum(0)):
        raise Finding(
            "sum",
            f"Every rank has the sum {when}. An all-reduce adds up; a mean is that sum divided by "
            "the number of ranks in the group.",
        )
    if all_near(results, list(inputs)):
        raise Finding(
            "nobody asked",
            "Each rank gets its own x back: nothing was sent. Without a collective no rank "
            "can know what the others hold.",
        )
    if all_near(results, list(inputs / n)):
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
    for wrong_n in (2, 3, 4):
        if everywhere(inputs.sum(0) / wrong_n):
            raise Finding(
                "a fixed number of ranks",
                f"The sum is divided by {wrong_n} {when}. Ask the group how many ranks it has: "
                "group.size().",
            )
    if everywhere(inputs.sum(0) / inputs[0].numel()):
        raise Finding(
            "divided by the elements",
            "You divided by the number of elements of x. The mean is taken over the ranks: divide "
            "by how many of them the group has.",
        )
    if everywhere(inputs.mean(0) / n):
        raise Finding("divided twice", "The mean is divided by the number of ranks once more.")
    if everywhere(inputs.max(0).values) or everywhere(inputs.max(0).values / n):
        raise Finding(
            "wrong values",
            "Those are the largest values of the ranks. A mean is made of their sum.",
        )
    if everywhere(inputs.mean(0).floor()) or everywhere(inputs.mean(0).round()):
        raise Finding("whole numbers", "The mean is right but for its fraction, which is cut off.")
    raise Finding("wrong values", f"What comes back {when} is not the mean of the ranks' x.")


def _look_at_traffic(reports: list[dict], inputs: torch.Tensor, when: str) -> None:
    n, x = inputs.shape[0], inputs[0]
    allowed = 2 * (n - 1) * -(-x.numel() // n) * x.itemsize  # in chunks that may be filled up
    for rank, report in enumerate(reports):
        if report["bytes"] > allowed:
            raise Finding(
                "too much sent",
                f"The mean is right, but {when} rank {rank} had to send {report['bytes']} bytes "
                f"where one all-reduce sends {allowed}. A rank needs the sum, not every x.",
            )


RANKS = 3  # in the question


def judge_who_knows(given: Mapping) -> None:
    """Hold the numbers against what each kind of cell does, and its misreadings by name."""
    right = {"a": RANKS, "b": 1, "c": 0, "d": RANKS, "e": 2}
    everywhere = dict.fromkeys(right, RANKS)
    if given["a"] == given["d"] == 2:  # as many as a notebook has that asks for no number
        raise Finding(
            "wrong number",
            "You have counted two ranks, as many as a notebook has by default. Here are three.",
        )
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
                "a range is not all",
                "`%%ranks 1-2` runs its cell on these two ranks: not on rank 0, and not in the "
                "notebook.",
                {"e": RANKS},
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
            Mistake(
                "which rank, not how many",
                "That is the number of a rank. Asked for is on how many ranks the variable is.",
                {"b": 0},
            ),
            Mistake(
                "its value",
                "That is what the variable holds. Asked for is on how many ranks it is there.",
                {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5},
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
