"""`row_step` of lesson 02: a step of training by rows, and what became of the bias in it.

Three steps on new numbers are held against one process: Y, then the weight, then the bias, which
is replicated and which every rank has to keep like all others.
"""

from __future__ import annotations

import torch

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, refuse_world_numbers
from course_lib.classroom.checks.lesson_01.trial import CALLS
from course_lib.classroom.checks.lesson_02.results import (
    fair,
    look_at_results,
    refuse_overwritten,
    tried,
    where,
)
from course_lib.classroom.checks.lesson_02.step import (
    LR,
    SAYS,
    Step,
    refuse_bias,
    refuse_weight,
    refuse_y,
)
from course_lib.classroom.checks.lesson_02.trial import STEPS, Product, product, steps
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed


def judge_row_step(answer: Answer, judge: Judge) -> None:
    """Try row_step; raise the Finding that explains best what is wrong."""
    judge.take(answer, "course_lib.classroom.checks.lesson_02.trial")
    seed = fresh_seed()
    b = 5 + 6 * (seed % 2)  # no size is another, or a number of ranks
    even = _try(answer, judge, THREE, (b, 12, 7), seed)
    _look(answer, even)
    uneven = _try(answer, judge, THREE, (b, 4, 7), seed)  # the last rank has nothing
    uneven += _try(answer, judge, TWO, (b, 13, 8), seed, "float32")
    _look(answer, uneven)
    for step in even + uneven:
        _look_at_bytes(step)
        refuse_overwritten(step.reports, step.owed(), step.when)


def _try(
    answer: Answer,
    judge: Judge,
    members: list[int],
    sizes: tuple,
    seed: int,
    dtype: str = "float64",
) -> list[Step]:
    when = where(members, "X[{}, {}] W[{}, {}]".format(*sizes[:2], *sizes[1:]))
    count = STEPS if dtype == "float64" else 1  # a float32 holds one step exactly, and no more
    calls = tried(answer, judge, members, when, sizes[1], steps, sizes, seed, LR, dtype, count)
    before = [product(*sizes, seed + STEPS * k, dtype).double() for k in range(len(CALLS))]
    taken = []
    for call, reports in enumerate(calls):
        number, k = divmod(call, len(CALLS))
        data = product(*sizes, seed + STEPS * k + number, dtype).double()
        whole = Product(data.x, before[k].weight, before[k].bias, data.dy)
        at = f"{when}, step {number + 1}" + " of a second layer" * k
        step = Step(number + 1, whole, len(members), reports, at, dtype, k > 0)
        _refuse_a_part_of_the_bias(step)
        look_at_results(reports, step.owed(), step.when, dtype)
        taken.append(step)
        before[k] = step.after()
    return taken


def _refuse_a_part_of_the_bias(step: Step) -> None:
    f = len(step.whole.bias)
    for rank, report in enumerate(step.reports):
        shapes = report["shapes"]
        if len(shapes) == 3 and len(shapes[2]) == 1 and shapes[2][0] < f and shapes[0][-1:] == [f]:
            raise Finding(
                "bias cut",
                f"Rank {rank} returned {shapes[2][0]} of the {f} elements of the bias, "
                f"{step.when}. By rows f is not cut: Y is replicated, and so is its bias.",
            )


def _look(answer: Answer, steps: list[Step]) -> None:
    """The first thing that is wrong, step by step: Y before the weight, the weight before bias."""
    wrong = [(step, part) for step in steps for part in range(3) if step.wrong(part)]
    if not wrong:
        return
    if all(step.n == 2 for step, _ in wrong):
        refuse_world_numbers(answer, wrong[0][0].when)
    step, part = wrong[0]
    if step.number > 1 or step.second:  # the first step of the first layer came out right
        raise Finding(
            "another second step",
            f"{step.owed()[0][part].name} is not right {step.when}, and the first step was right. "
            "Two layers take their steps in turns. Does your function keep something between "
            "calls?",
        )
    (refuse_y, refuse_weight, refuse_bias)[part](step)


def _look_at_bytes(step: Step) -> None:
    """One all-reduce of Y a step, and nothing for the bias."""
    b, f = step.whole.dy.shape
    allowed = fair(step.n, (b, f), getattr(torch, step.dtype).itemsize)
    for rank, report in enumerate(step.reports):
        if report["bytes"] > allowed:
            ops = " and ".join(f"{count} × {op}" for op, count in report["ops"].items())
            raise Finding(
                "over budget",
                f"Y, weight and bias are right, but rank {rank} has to send {report['bytes']} "
                f"bytes {step.when} ({ops}); allowed are {allowed:g}, one sum of Y. Whatever else "
                "is sent, this rank could have computed it.",
            )


ROW_STEP = Exercise(judge=judge_row_step, **SAYS.about)
