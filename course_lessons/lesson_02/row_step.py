"""`row_step` of lesson 02: a training step of a row-sharded layer, and its treatment of the bias.

Y, then the weight, then the bias, which all ranks must keep, are compared with one process.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from course_classroom.judge.answer import Answer
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.looking import THREE, TWO, alike, fresh_seed, refuse_general
from course_classroom.judge.words import Page
from course_lessons.lesson_00.trial import CALLS, refuse_overwritten
from course_lessons.lesson_02 import trial
from course_lessons.lesson_02.trial import ROWS, STEPS, Owed, Product, product

LR = 0.0625  # of the first step; each next step uses half
NARROW = 1e-2  # relative error of a sum in 16 bits
SAYS = Page(__file__, "row_step")
_HALF = "The loss is half the sum of the squares of Y − target, so dY is Y − target."


class Step:
    """One step on a group: the results of one process and of each rank."""

    def __init__(
        self, whole: Product, reports: list, when: str, dtype: str, lr: float, first: bool
    ):
        self.whole, self.reports, self.when, self.dtype = whole, reports, when, dtype
        self.lr, self.first, self.n = lr, first, len(reports)
        self.y = whole.x @ whole.weight + whole.bias
        self.dy = self.y - whole.dy  # `whole` stores the target there
        self.parts = [whole.mine(ROWS, self.n, rank) for rank in range(self.n)]
        weight = whole.weight - lr * whole.x.T @ self.dy
        self.after = whole._replace(weight=weight, bias=whole.bias - lr * self.dy.sum(0))
        mine = [self.after.mine(ROWS, self.n, rank) for rank in range(self.n)]
        wholes = (self.y, self.after.weight, self.after.bias)
        names = ("Y", "weight", "bias")
        self.owed = [list(map(Owed, names, (self.y, *part[1:3]), wholes)) for part in mine]


def judge_row_step(answer: Answer, judge: Judge) -> None:
    """Try row_step; raise the Finding that explains the error best."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    b = 5 + 6 * (seed % 2)  # differs from all other sizes and from the number of ranks

    def tried(members: list[int], h: int, f: int, dtype: str = "float64") -> list[Step]:
        when, sizes = f"{on(members)}, X[{b}, {h}] W[{h}, {f}]", (b, h, f)
        count = STEPS if dtype == "float64" else 1  # float32 is exact for only one step
        layers = [product(*sizes, seed + STEPS * k, dtype).double() for k in range(len(CALLS))]

        def call(i: int, reports: list[dict]) -> Step:
            number, k = divmod(i, len(CALLS))
            data = product(*sizes, seed + STEPS * k + number, dtype).double()
            whole = layers[k]._replace(x=data.x, dy=data.dy)
            at = f"{when}, step {number + 1}" + " of a second layer" * k
            step = Step(whole, reports, at, dtype, LR / 2**number, i == 0)
            _refuse_a_part_of_the_bias(step)
            layers[k] = step.after
            return step

        given = (trial.steps, sizes, seed, LR, dtype, count)
        return trial.tried(answer, judge, (members, when, h), call, *given)

    even = tried(THREE, 12, 7)
    _look_at_values(even)
    uneven = tried(THREE, 4, 7) + tried(TWO, 13, 8, "float32")  # of three, the last has nothing
    _look_at_values(uneven)
    for step in even + uneven:
        _look_at_bytes(step)
        refuse_overwritten(step.reports, "A tensor", step.when)


def _look_at_bytes(step: Step) -> None:
    """Compare the bytes sent with one all-reduce of Y and no bytes for the bias."""
    allowed = trial.fair(step, step.dy.shape)
    looks = {"over budget": lambda report: report["bytes"] > allowed}
    SAYS.refuse_each(step.reports, looks, when=step.when, allowed=allowed)


def _refuse_a_part_of_the_bias(step: Step) -> None:
    f = len(step.whole.bias)

    def cut_off(report: dict) -> bool:
        shapes = report["shapes"]
        return len(shapes) == 3 and shapes[0][-1:] == [f] and shapes[2] in [[k] for k in range(f)]

    SAYS.refuse_each(step.reports, {"bias cut #1": cut_off}, when=step.when, f=f)


def _look_at_values(steps: list[Step]) -> None:
    """Raise a Finding for the first error, by step: Y, then the weight, then the bias."""
    for step, part in itertools.product(steps, range(3)):
        wrong = trial.wrong(step, part)
        if wrong:
            name = step.owed[0][part].name
            SAYS.refuse({"wrong second step": not step.first}, name=name, when=step.when)
            (_refuse_y, _refuse_weight, _refuse_bias)[part](step, wrong)


def _refuse_y(step: Step, wrong: list[int]) -> None:
    seen, rank, n = trial.seen(step, 0), wrong[0], step.n
    head = f"Y on rank {rank} is wrong ({step.when})."
    there = " there" if len(wrong) < n else ""
    trial.refuse_first(seen[rank], SAYS, _of_y(step, wrong), head, n=n, there=there)
    refuse_general(seen, [step.y] * n, step.when, what="value of Y")
    off, bias = float((seen[rank] - step.y).abs().max()), float(step.whole.bias.abs().max())
    rounded = off < NARROW * step.y.abs().max()
    raise SAYS("rounded on the way" if rounded else "wrong Y", head=head, off=off, bias=bias)


def _of_y(step: Step, wrong: list[int]) -> Iterator[tuple[str, Tensor]]:
    n, right, bias, after = step.n, step.y, step.whole.bias, step.after
    yield "bias added on every rank", right + (n - 1) * bias
    yield "dY for Y", step.dy
    yield "Y of the next step", step.whole.x @ after.weight + after.bias
    yield "bias left out", right - bias
    products = torch.stack([part.x @ part.weight for part in step.parts])
    for k in (0, 1, 1 / n) if len(wrong) == n else ():
        yield "sum left out", products[wrong[0]] + k * bias
    yield "mean", right / n
    yield "mean", (right - bias) / n + bias
    for k in (0, 1):
        yield "largest", products.max(0).values + k * bias


def _refuse_weight(step: Step, wrong: list[int]) -> None:
    """Raise a Finding for the wrong new weight, if Y is correct."""
    rank, dy, n, (b, f) = wrong[0], step.dy, step.n, step.dy.shape
    mine, new = step.parts[rank], trial.seen(step, 1)[rank]
    head = f"Y is correct, but the new weight on rank {rank} is wrong ({step.when})."
    moved = (mine.weight - new) / step.lr  # the gradient that was used
    grads = [part.x.T @ dy for part in step.parts]
    right = grads[rank]
    SAYS.refuse({"gradient, not weight": alike(new, right)}, head=head)
    own_dy = mine.x @ mine.weight + step.whole.bias - step.whole.dy
    ideas = [
        ("weight not trained", torch.zeros_like(right)),
        ("uphill", -right),
        ("dY without the bias", mine.x.T @ (dy - step.whole.bias)),
        ("dY of a partial sum", mine.x.T @ own_dy),
    ]
    if all(grad.shape == right.shape for grad in grads):
        mixed = torch.stack(grads).sum(0)
        ideas += [("different shards added", mixed / k) for k in (1, n)]
    trial.refuse_first(moved, SAYS, ideas, head)
    for by, why in (
        (n, "That is once for each rank, but each rank's gradient is complete."),
        (1 / n, f"It is divided by the {n} ranks, but each rank's gradient is complete."),
        (1 / b, f"It is divided by the {b} rows of X, but the loss is a sum, not a mean."),
        (1 / (b * f), f"It is divided by the {b * f} elements of Y, but the loss is not a mean."),
        (2, _HALF),
        (1 / 2, _HALF),
        (step.lr, "The learning rate is applied twice."),
        (1 / step.lr, "The learning rate is missing."),
        (_times(moved, right), "Is something divided or multiplied once too often?"),
    ):
        trial.refuse_first(moved, SAYS, [("wrong step", by * right)], head, by=by, why=why)
    raise SAYS("wrong weight", head=head)


def _refuse_bias(step: Step, wrong: list[int]) -> None:
    """Raise a Finding for the wrong new bias, if Y and the weight are correct."""
    rank, new, n, (b, f) = wrong[0], trial.seen(step, 2), step.n, step.dy.shape
    db = step.dy.sum(0)
    head = f"Y and the weight are correct, but the new bias on rank {rank} is wrong ({step.when})."
    moved = [(step.whole.bias - bias) / step.lr for bias in new]
    SAYS.refuse({"gradient, not weight": alike(new[rank], db)}, head=head)
    ideas = [
        ("bias not trained" if len(wrong) == n else "bias trained on some ranks", 0 * db),
        ("bias trained N times as fast", n * db),
        ("bias trained N times as slowly", db / n),
        ("uphill", -db),
        ("summed over all", torch.full_like(db, float(step.dy.sum()))),
    ]
    trial.refuse_first(moved[rank], SAYS, ideas, head, n=n)
    touched = [~torch.isclose(one, torch.zeros_like(one), atol=1e-12) for one in moved]
    trained = all(alike(one[mask], db[mask]) for one, mask in zip(moved, touched, strict=True))
    some = not all(bool(mask.all()) for mask in touched)
    SAYS.refuse({"bias cut #2": trained and some}, head=head)
    sizes = {"rows of X": b, "elements of Y": b * f}
    refuse_general(moved, [db] * n, step.when, sizes=sizes, what="gradient of the bias")
    by = _times(moved[rank], db)
    trial.refuse_first(moved[rank], SAYS, [("wrong step", by * db)], head, by=by, why="")
    raise SAYS("wrong bias", head=head)


def _times(got: Tensor, right: Tensor) -> float:
    """Return the least-squares factor between a gradient and the right gradient, or 0."""
    times = float((got * right).sum() / (right * right).sum())
    return times if math.isfinite(times) else 0.0


ROW_STEP = Exercise(judge=judge_row_step, **SAYS.about)
