"""A step of `row_step` in lesson 02 beside that of one process, and the ideas that it may show.

Each idea is a name, words for it, and what it gives: Y, the gradient that moved the weight, or the
one that moved the bias.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.general import ROUNDED
from course_lib.classroom.checks.lesson_02.results import Gives, Owed, refuse_first
from course_lib.classroom.checks.lesson_02.trial import ROWS, Product
from course_lib.classroom.checks.looking import near, refuse_general

LR = 0.0625
NARROW = 1e-2  # relative: what a sum of numbers of 16 bits may be off
_HALF = "The loss is half the sum of the squares of Y − target: then dY is Y − target."
_GRADIENT = "It is the gradient. The new one is the old one minus lr times that."


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

    def wrong(self, part: int) -> list[int]:
        """The ranks on which Y, the weight or the bias is wrong."""
        pairs = zip(self.reports, self.owed(), strict=True)
        near_on = [near(report["entries"][part], owed[part].part) for report, owed in pairs]
        return [rank for rank, right in enumerate(near_on) if not right]


def _times(got: Tensor, right: Tensor) -> float:
    """How many times the right one a gradient is, where it is a multiple of it."""
    times = float((got * right).sum() / (right * right).sum())
    return times if math.isfinite(times) else 0.0


def refuse_y(step: Step) -> None:
    """Raise what is wrong with Y."""
    wrong, n, bias, after = step.wrong(0), step.n, step.whole.bias, step.after()
    rank = wrong[0]
    seen, right = [report["entries"][0] for report in step.reports], step.owed()[rank][0].part
    head, local = f"Y on rank {rank} is not right {step.when}.", step.parts()[rank]
    ideas = [
        Gives(
            "bias added on every rank",
            f"It holds the bias {n} times: each rank added it to its part, and then the parts were "
            "added up.",
            right + (n - 1) * bias,
        ),
        Gives(
            "dY for Y",
            "It is Y − target, which is dY. Was dY written into the memory of Y?",
            step.dy,
        ),
        Gives(
            "Y of the next step",
            "It is what the new weight and bias give. Y is what the step begins with.",
            step.whole.x @ after.weight + after.bias,
        ),
        Gives(
            "bias left out",
            f"The bias is missing{' there' * (len(wrong) < n)}. Every rank has Y, and Y has one "
            "bias on each.",
            right - bias,
        ),
    ]
    if len(wrong) == n:
        ideas += [
            Gives(
                "sum left out",
                "It is this rank's own part of the product. By rows h is cut, and the product sums "
                "over h: it is a partial sum, still to be all-reduced.",
                local.x @ local.weight + k * bias,
            )
            for k in (0, 1, 1 / n)
        ]
    ideas += [
        Gives("mean", "The ranks' parts are to be added up, not averaged.", value)
        for value in (right / n, (right - bias) / n + bias)
    ]
    products = torch.stack([part.x @ part.weight for part in step.parts()])
    ideas += [
        Gives("largest", "The ranks' parts are to be added up: that is their largest.", value)
        for value in (products.max(0).values, products.max(0).values + bias)
    ]
    refuse_first(seen[rank], ideas, head)
    refuse_general(seen, [right] * n, step.when, what="Y")
    off = (seen[rank] - right).abs().max()
    if off < NARROW * right.abs().max():
        raise Finding(
            ROUNDED,
            f"{head} It is off by {off:.2g} at most: was something rounded to 16 bits on the way? "
            "What comes in is float64.",
        )
    raise Finding(
        "wrong Y",
        f"{head} Largest difference {off:.3g}; the bias as it came in reaches "
        f"{bias.abs().max():.3g}.",
    )


def refuse_weight(step: Step) -> None:
    """Raise what is wrong with the new weight, where Y is right."""
    rank, n, parts = step.wrong(1)[0], step.n, step.parts()
    mine, new = parts[rank], step.reports[rank]["entries"][1]
    head = f"Y is right, the new weight on rank {rank} is not {step.when}."
    moved = (mine.weight - new) / LR  # the gradient that was used
    grads = [part.x.T @ step.dy for part in parts]
    right, (b, f) = grads[rank], step.dy.shape
    if near(new, right):
        raise Finding("gradient, not weight", f"{head} {_GRADIENT}")
    own_dy = mine.x @ mine.weight + step.whole.bias - step.whole.dy
    ideas = [
        Gives("weight not trained", "It is as it was before the step.", torch.zeros_like(right)),
        Gives("uphill", "It went up the slope instead of down.", -right),
        Gives(
            "dY without the bias",
            "Its gradient comes from a Y without the bias. dY is Y − target, with all that Y has.",
            mine.x.T @ (step.dy - step.whole.bias),
        ),
        Gives(
            "dY of a partial sum",
            "Its gradient comes from this rank's part of Y, before the sum. dY is Y − target, the "
            "same on every rank.",
            mine.x.T @ own_dy,
        ),
    ]
    if all(grad.shape == right.shape for grad in grads):
        ideas += [
            Gives(
                "parts of different things added",
                "Its gradient is a mixture of all ranks' gradients, and theirs belong to other "
                "rows of W.",
                torch.stack(grads).sum(0) / k,
            )
            for k in (1, n)
        ]
    ideas += [
        Gives("another step", f"It moved {by:.3g} times as far as it should. {why}", by * right)
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
        )
    ]
    refuse_first(moved, ideas, head)
    raise Finding("wrong weight", f"{head} Which part of X meets this rank's rows of W?")


def refuse_bias(step: Step) -> None:
    """Raise what is wrong with the new bias, where Y and the weight are right."""
    wrong, n, db, (b, f) = step.wrong(2), step.n, step.db, step.dy.shape
    rank, new = wrong[0], [report["entries"][2] for report in step.reports]
    head = f"Y and the weight are right, the new bias on rank {rank} is not {step.when}."
    moved = [(step.whole.bias - bias) / LR for bias in new]
    still = "It is as it was before the step, on every rank. The bias has a gradient too."
    if len(wrong) < n:
        still = (
            f"It is as it was before, while rank {min(set(range(n)) - set(wrong))} trained its "
            "own. Every rank holds a copy of this bias, and from now on the copies differ; which "
            "of them will be saved?"
        )
    if near(new[rank], db):
        raise Finding("gradient, not weight", f"{head} {_GRADIENT}")
    ideas = [
        Gives(
            "bias not trained" if len(wrong) == n else "bias trained on some ranks",
            still,
            torch.zeros_like(db),
        ),
        Gives(
            "bias trained N times as fast",
            f"It moved {n} times as far as it should. dY is the same on every rank, so each has "
            "the whole gradient of the bias; a sum over the ranks counts it again.",
            n * db,
        ),
        Gives(
            "bias trained N times as slowly",
            f"It moved one {n}-th of the way. Was its gradient shared out? dY is the same on every "
            "rank, and so is the gradient of the bias.",
            db / n,
        ),
        Gives("uphill", "It went up the slope instead of down.", -db),
        Gives(
            "summed over all",
            "Its gradient is one number, the sum of all of dY. Each element of the bias has a "
            "column of its own.",
            torch.full_like(db, float(step.dy.sum())),
        ),
    ]
    refuse_first(moved[rank], ideas, head)
    touched = [~torch.isclose(one, torch.zeros_like(one), atol=1e-12) for one in moved]
    trained = all(near(one[mask], db[mask]) for one, mask in zip(moved, touched, strict=True))
    if trained and not all(bool(mask.all()) for mask in touched):
        raise Finding(
            "bias cut",
            f"{head} Only a part of it was trained on this rank. By rows f is not cut: every rank "
            "trains the whole bias, all in the same way.",
        )
    sizes = {"rows of X": b, "elements of Y": b * f}
    refuse_general(moved, [db] * n, step.when, sizes=sizes, what="gradient of the bias")
    by = _times(moved[rank], db)
    if near(moved[rank], by * db):
        raise Finding("another step", f"{head} It moved {by:.3g} times as far as it should.")
    raise Finding(
        "wrong bias", f"{head} Its gradient sums dY over the rows of X, and over nothing else."
    )
