"""`row_step` of lesson 02: a step of training by rows, and what became of the bias in it.

Three steps on new numbers are held against one process: Y, then the weight, then the bias, which
is replicated and which every rank has to keep like all others.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, refuse_world_numbers
from course_lib.classroom.checks.lesson_02.results import (
    Owed,
    close,
    fair,
    look_at_results,
    tried,
    where,
)
from course_lib.classroom.checks.lesson_02.trial import ROWS, STEPS, Product, product

LR = 0.0625


class Step(NamedTuple):
    """One step on one group: the full tensors before it, and what came back on each rank."""

    number: int
    whole: Product  # before the step; dy is the target
    n: int
    reports: list[dict]
    when: str

    @property
    def dy(self) -> Tensor:
        return self.whole.x @ self.whole.weight + self.whole.bias - self.whole.dy

    @property
    def db(self) -> Tensor:
        return self.dy.sum(0)

    def parts(self) -> list[Product]:
        return [self.whole.mine(ROWS, self.n, rank) for rank in range(self.n)]

    def after(self) -> Product:
        """What the next step begins with, in one process."""
        weight = self.whole.weight - LR * self.whole.x.T @ self.dy
        return Product(self.whole.x, weight, self.whole.bias - LR * self.db, self.dy)

    def owed(self) -> list[list[Owed]]:
        y, after = self.dy + self.whole.dy, self.after()
        return [
            [
                Owed("Y", y, y),
                Owed("weight", after.mine(ROWS, self.n, rank).weight, after.weight),
                Owed("bias", after.bias, after.bias),
            ]
            for rank in range(self.n)
        ]


def judge_row_step(answer: Answer, judge: Judge) -> None:
    """Try row_step; raise the Finding that explains best what is wrong."""
    judge.take(answer)
    seed = int.from_bytes(os.urandom(3), "big")
    b, p, f = 3 + seed % 2, 2 + seed % 3, 5 + seed % 3
    three, two = [0, 1, 2], [1, 2]  # the two are not the notebook's first two
    even = [_try(answer, judge, three, (b, 3 * p, f), seed, True)]
    _look(answer, even)
    uneven = [_try(answer, judge, m, (b, p * len(m) + 1, f), seed, False) for m in (three, two)]
    _look(answer, uneven)
    for step in (step for steps in even + uneven for step in steps):
        _look_at_bytes(step)


def _try(
    answer: Answer, judge: Judge, members: list[int], sizes: tuple, seed: int, even: bool
) -> list[Step]:
    when = where(members, "X[{}, {}] W[{}, {}]".format(*sizes[:2], *sizes[1:]))
    call = f'bench.part("lesson_02.trial").steps({answer.name}, {sizes}, {seed}, {LR}, __trial__)'
    by_rank = tried(answer, judge, call, members, when, even)
    before, steps = product(*sizes, seed), []
    for number in range(STEPS):
        data = product(*sizes, seed + number)
        whole = Product(data.x, before.weight, before.bias, data.dy)
        reports = [reports[number] for reports in by_rank]
        step = Step(number + 1, whole, len(members), reports, f"{when}, step {number + 1}")
        _refuse_a_part_of_the_bias(step)
        look_at_results(reports, step.owed(), step.when)
        steps.append(step)
        before = step.after()
    return steps


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


def _look(answer: Answer, tries: list[list[Step]]) -> None:
    """The first thing that is wrong, step by step: Y before the weight, the weight before bias."""
    steps = [step for steps in tries for step in steps]
    wrong = [(step, part) for step in steps for part in range(3) if _wrong(step, part)]
    if not wrong:
        return
    if all(step.n == 2 for step, _ in wrong):
        refuse_world_numbers(answer, wrong[0][0].when)
    step, part = wrong[0]
    raise (_wrong_y, _wrong_weight, _wrong_bias)[part](step)


def _wrong(step: Step, part: int) -> list[int]:
    """The ranks on which Y, the weight or the bias is wrong."""
    owed = step.owed()
    return [
        r for r in range(step.n) if not close(step.reports[r]["entries"][part], owed[r][part].part)
    ]


def _wrong_y(step: Step) -> Finding:
    wrong, n, bias = _wrong(step, 0), step.n, step.whole.bias
    rank = wrong[0]
    got, right = step.reports[rank]["entries"][0], step.owed()[rank][0].part
    head = f"Y on rank {rank} is not right {step.when}."
    if close(got, right + (n - 1) * bias):
        return Finding(
            "bias added on every rank",
            f"{head} It holds the bias {n} times: each rank added it to its part, and then the "
            "parts were added up.",
        )
    if close(got, right - bias):
        some = " there" if len(wrong) < n else ""
        return Finding(
            "bias left out",
            f"{head} The bias is missing{some}. Every rank has Y, and Y has one bias on each.",
        )
    local = step.parts()[rank]
    part = local.x @ local.weight
    if any(close(got, part + k * bias) for k in (0, 1, 1 / n)):
        return Finding(
            "sum left out",
            f"{head} It is this rank's own part of the product. By rows h is cut, and the product "
            "sums over h: it is a partial sum, still to be all-reduced.",
        )
    if close(got, right / n) or close(got, (right - bias) / n + bias):
        return Finding("mean", f"{head} The ranks' parts are to be added up, not averaged.")
    return Finding(
        "wrong Y",
        f"{head} Largest difference {(got - right).abs().max():.3g}; the bias as it came "
        f"in reaches {bias.abs().max():.3g}.",
    )


def _wrong_weight(step: Step) -> Finding:
    rank, n = _wrong(step, 1)[0], step.n
    report, parts = step.reports[rank], step.parts()
    mine = parts[rank]
    head = f"Y is right, the new weight on rank {rank} is not {step.when}."
    got = (mine.weight - report["entries"][1]) / LR  # the gradient that was used
    grads = [part.x.T @ step.dy for part in parts]
    right = grads[rank]
    if close(got, torch.zeros_like(got)):
        return Finding("weight not trained", f"{head} It is as it was before the step.")
    if close(got, -right):
        return Finding("uphill", f"{head} It went up the slope instead of down.")
    alike = all(grad.shape == right.shape for grad in grads)
    if alike and any(close(got, torch.stack(grads).sum(0) / k) for k in (1, n)):
        return Finding(
            "parts of different things added",
            f"{head} Its gradient is a mixture of all ranks' gradients, and theirs belong to other "
            "rows of W.",
        )
    for scale in (n, 1 / n, 2, 1 / len(mine.x), 1 / mine.dy.numel()):
        if close(got, scale * right):
            return Finding(
                "another step",
                f"{head} It moved {scale:.3g} times as far as it should. The loss is half the sum "
                "of the squares of Y − target: then dY is Y − target.",
            )
    return Finding("wrong weight", f"{head} Which part of X meets this rank's rows of W?")


def _wrong_bias(step: Step) -> Finding:
    wrong, n = _wrong(step, 2), step.n
    rank = wrong[0]
    head = f"Y and the weight are right, the new bias on rank {rank} is not {step.when}."
    moved = [(step.whole.bias - report["entries"][2]) / LR for report in step.reports]
    got, db = moved[rank], step.db
    still = close(got, torch.zeros_like(db))
    if still and len(wrong) == n:
        return Finding(
            "bias not trained",
            f"{head} It is as it was before the step, on every rank. The bias has a gradient too.",
        )
    if still:
        return Finding(
            "bias trained on some ranks",
            f"{head} It is as it was before, while rank {min(set(range(n)) - set(wrong))} trained "
            "its own. Every rank holds a copy of this bias, and from now on the copies differ; "
            "which of them will be saved?",
        )
    if close(got, n * db):
        return Finding(
            "bias trained N times as fast",
            f"{head} It moved {n} times as far as it should. dY is the same on every rank, so each "
            "has the whole gradient of the bias; a sum over the ranks counts it again.",
        )
    if close(got, db / n):
        return Finding(
            "bias trained N times as slowly",
            f"{head} It moved one {n}-th of the way. Was its gradient shared out? dY is the "
            "same on every rank, and so is the gradient of the bias.",
        )
    touched = [~torch.isclose(one, torch.zeros_like(one), atol=1e-12) for one in moved]
    if all(
        close(one[mask], db[mask]) for one, mask in zip(moved, touched, strict=True)
    ) and not all(bool(mask.all()) for mask in touched):
        return Finding(
            "bias cut",
            f"{head} Only a part of it was trained on this rank. By rows f is not cut: every rank "
            "trains the whole bias, all in the same way.",
        )
    return Finding(
        "wrong bias",
        f"{head} Its gradient sums dY over the rows of X, and over nothing else.",
    )


def _look_at_bytes(step: Step) -> None:
    """One all-reduce of Y a step, and nothing for the bias."""
    b, f = step.whole.dy.shape
    allowed = fair(step.n, (b, f))
    for rank, report in enumerate(step.reports):
        if report["bytes"] > allowed:
            ops = " and ".join(f"{count} × {op}" for op, count in report["ops"].items())
            raise Finding(
                "over budget",
                f"Y, weight and bias are right, but rank {rank} has to send {report['bytes']} "
                f"bytes {step.when} ({ops}); allowed are {allowed:g}, one sum of Y. Whatever else "
                "is sent, this rank could have computed it.",
            )


ROW_STEP = Exercise(
    name="row_step",
    title="Where the bias goes",
    points=4,
    judge=judge_row_step,
    when_right=(
        f"Y, weight and bias as in one process for {STEPS} steps, on two ranks and on three; one "
        "sum of Y in each step, and the copies of the bias stay alike without a word about it."
    ),
    hints=(
        "Write Y for two ranks on paper, with everything that is added up. How often should the "
        "bias stand there, and how often does it, if each rank adds it to its part?",
        "After the sum, every rank holds the same Y. So each can add something to it, and all "
        "still hold the same.",
        "dY = Y − target is the same on every rank as well. Which of the gradients can a rank "
        "compute from dY and what it holds, and is any of them only a part of a sum?",
        "Copies that begin alike and take the same step stay alike: nothing has to be sent for "
        "that.",
    ),
)
