"""A step of `row_step` in lesson 02 beside that of one process, and the ideas that it may show.

Each idea gives Y, the gradient that moved the weight, or the one that moved the bias.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.general import ROUNDED
from course_lib.classroom.checks.lesson_02.results import Owed, refuse_first
from course_lib.classroom.checks.lesson_02.trial import ROWS, Product
from course_lib.classroom.checks.looking import near, refuse_general
from course_lib.classroom.checks.words import Page

LR = 0.0625
NARROW = 1e-2  # relative: what a sum of numbers of 16 bits may be off
SAYS = Page("lesson_02/row_step")
_HALF = "The loss is half the sum of the squares of Y − target: then dY is Y − target."


class Step(NamedTuple):
    """One step on one group: the full tensors before it, and what came back on each rank."""

    number: int
    whole: Product  # before the step; dy is the target
    n: int
    reports: list[dict]
    when: str
    dtype: str
    second: bool  # whether it is one of the layer whose steps are taken in turns with the first's

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

    def seen(self, part: int) -> list[Tensor]:
        return [report["entries"][part] for report in self.reports]

    def wrong(self, part: int) -> list[int]:
        """The ranks on which Y, the weight or the bias is wrong."""
        pairs = zip(self.seen(part), self.owed(), strict=True)
        return [rank for rank, (seen, owed) in enumerate(pairs) if not near(seen, owed[part].part)]


def _times(got: Tensor, right: Tensor) -> float:
    """How many times the right one a gradient is, where it is a multiple of it."""
    times = float((got * right).sum() / (right * right).sum())
    return times if math.isfinite(times) else 0.0


def refuse_y(step: Step) -> None:
    """Raise what is wrong with Y."""
    rank, seen, bias = step.wrong(0)[0], step.seen(0), step.whole.bias
    right = step.owed()[rank][0].part
    head = f"Y on rank {rank} is not right {step.when}."
    there = " there" if len(step.wrong(0)) < step.n else ""
    refuse_first(seen[rank], SAYS, _of_y(step, rank, right), head, n=step.n, there=there)
    refuse_general(seen, [right] * step.n, step.when, what="Y")
    off = float((seen[rank] - right).abs().max())
    if off < NARROW * right.abs().max():
        raise SAYS(ROUNDED, head=head, off=off)
    raise SAYS("wrong Y", head=head, off=off, bias=float(bias.abs().max()))


def _of_y(step: Step, rank: int, right: Tensor) -> Iterator[tuple[str, Tensor]]:
    n, bias, after, parts = step.n, step.whole.bias, step.after(), step.parts()
    yield "bias added on every rank", right + (n - 1) * bias
    yield "dY for Y", step.dy
    yield "Y of the next step", step.whole.x @ after.weight + after.bias
    yield "bias left out", right - bias
    products = torch.stack([part.x @ part.weight for part in parts])
    if len(step.wrong(0)) == n:
        for k in (0, 1, 1 / n):
            yield "sum left out", products[rank] + k * bias
    yield "mean", right / n
    yield "mean", (right - bias) / n + bias
    for k in (0, 1):
        yield "largest", products.max(0).values + k * bias


def refuse_weight(step: Step) -> None:
    """Raise what is wrong with the new weight, where Y is right."""
    rank = step.wrong(1)[0]
    mine, new = step.parts()[rank], step.seen(1)[rank]
    head = f"Y is right, the new weight on rank {rank} is not {step.when}."
    moved = (mine.weight - new) / LR  # the gradient that was used
    grads = [part.x.T @ step.dy for part in step.parts()]
    right, (b, f), n = grads[rank], step.dy.shape, step.n
    if near(new, right):
        raise SAYS("gradient, not weight", head=head)
    own_dy = mine.x @ mine.weight + step.whole.bias - step.whole.dy
    ideas = [
        ("weight not trained", torch.zeros_like(right)),
        ("uphill", -right),
        ("dY without the bias", mine.x.T @ (step.dy - step.whole.bias)),
        ("dY of a partial sum", mine.x.T @ own_dy),
    ]
    if all(grad.shape == right.shape for grad in grads):
        mixed = torch.stack(grads).sum(0)
        ideas += [("parts of different things added", mixed / k) for k in (1, n)]
    refuse_first(moved, SAYS, ideas, head)
    for by, why in (
        (n, "That is once for each rank. Each rank's gradient is complete."),
        (1 / n, f"It is divided by the {n} ranks. Each rank's gradient is complete."),
        (1 / b, f"It is divided by the {b} rows of X. The loss is a sum, and no mean."),
        (1 / (b * f), f"It is divided by the {b * f} elements of Y. The loss is no mean."),
        (2, _HALF),
        (1 / 2, _HALF),
        (LR, "The learning rate stands in it twice."),
        (1 / LR, "The learning rate is missing."),
        (_times(moved, right), "Is something divided or multiplied once too often?"),
    ):
        refuse_first(moved, SAYS, [("another step", by * right)], head, by=by, why=why)
    raise SAYS("wrong weight", head=head)


def refuse_bias(step: Step) -> None:
    """Raise what is wrong with the new bias, where Y and the weight are right."""
    wrong, n, db, (b, f) = step.wrong(2), step.n, step.db, step.dy.shape
    rank, new = wrong[0], step.seen(2)
    head = f"Y and the weight are right, the new bias on rank {rank} is not {step.when}."
    moved = [(step.whole.bias - bias) / LR for bias in new]
    if near(new[rank], db):
        raise SAYS("gradient, not weight", head=head)
    still = "bias not trained" if len(wrong) == n else "bias trained on some ranks"
    ideas = [
        (still, torch.zeros_like(db)),
        ("bias trained N times as fast", n * db),
        ("bias trained N times as slowly", db / n),
        ("uphill", -db),
        ("summed over all", torch.full_like(db, float(step.dy.sum()))),
    ]
    refuse_first(moved[rank], SAYS, ideas, head, n=n)
    touched = [~torch.isclose(one, torch.zeros_like(one), atol=1e-12) for one in moved]
    trained = all(near(one[mask], db[mask]) for one, mask in zip(moved, touched, strict=True))
    if trained and not all(bool(mask.all()) for mask in touched):
        raise SAYS("bias cut", head=head)
    sizes = {"rows of X": b, "elements of Y": b * f}
    refuse_general(moved, [db] * n, step.when, sizes=sizes, what="gradient of the bias")
    by = _times(moved[rank], db)
    refuse_first(moved[rank], SAYS, [("another step", by * db)], head, by=by, why="")
    raise SAYS("wrong bias", head=head)
