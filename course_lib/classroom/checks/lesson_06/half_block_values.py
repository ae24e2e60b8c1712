"""Is it the dense half block: output, five gradients, two steps? If not, which idea gives these?

For `sequence_mlp` of lesson 06. Each wrong idea is computed and compared, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_06 import half_block_trial as trial
from course_lib.layout import cut, span

TOLERANCE = 1e-10  # float64


def near(a: Tensor | None, b: Tensor) -> bool:
    return a is not None and a.shape == b.shape and bool(((a - b).abs() <= TOLERANCE).all())


class Trial:
    """Two steps of the learner's function on a group, beside the dense half block."""

    def __init__(self, reports: list[dict], sizes: trial.Sizes, seed: int, when: str):
        self.reports, self.sizes, self.when = reports, sizes, when
        self.n = len(reports)
        self.tokens = cut(sizes.s, self.n)
        self.dense = trial.numbers(sizes, seed)

    def units(self, rank: int) -> slice:
        return slice(*span(self.sizes.f, self.n, rank))

    def own(self, whole: Tensor, rank: int) -> Tensor:
        return whole.split(self.tokens, 1)[rank]

    def parts(self, grads: tuple[Tensor, ...], rank: int) -> list[Tensor]:
        """What a rank should have of the gradients of x, weight, up, down and bias."""
        x, weight, up, down, bias = grads
        units = self.units(rank)
        return [self.own(x, rank), weight, up[units], down[:, units], bias]

    @cached_property
    def steps(self) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
        """Of the dense half block, for each step: the output and the five gradients."""
        weights, found = tuple(self.dense[:4]), []
        for x, dy in zip(self.dense.xs, self.dense.dys, strict=True):
            leaves = [t.detach().clone().requires_grad_() for t in (x, *weights)]
            y = trial.half(*leaves)
            y.backward(dy)
            grads = tuple(leaf.grad for leaf in leaves)
            found.append((y.detach(), grads))
            weights = tuple(
                w.detach() - trial.RATE * g for w, g in zip(leaves[1:], grads[1:], strict=True)
            )
        return found

    @cached_property
    def branch(self) -> Tensor:
        """The first step's branch, GELU(norm(x) A) B: (b, s, h)."""
        dense = self.dense
        return trial.half(dense.xs[0], *dense[:3], 0 * dense.bias) - dense.xs[0]

    def normed(self) -> Tensor:
        return F.rms_norm(self.dense.xs[0], (self.sizes.h,), self.dense.weight, trial.EPSILON)

    def part(self, rank: int, x: Tensor) -> Tensor:
        """What this rank's columns and rows make of normed tokens x."""
        units = self.units(rank)
        return F.gelu(x @ self.dense.up[units].t()) @ self.dense.down[:, units].t()

    def through(self, rank: int) -> Tensor:
        """The part of the norm's output's gradient that comes back by this rank's columns."""
        normed = self.normed().requires_grad_()
        self.part(rank, normed).backward(self.dense.dys[0])
        return normed.grad


def look_at_output(one: Trial) -> None:
    """A Finding where some rank's output is not its tokens of the dense one."""
    outs = [report["out"] for report in one.reports]
    right = one.steps[0][0]
    if all(near(out, one.own(right, rank)) for rank, out in enumerate(outs)):
        return
    for name, text, wanted in _outputs(one):
        if all(near(out, want) for out, want in zip(outs, wanted, strict=True)):
            raise Finding(name, f"{text} ({one.when}.)")
    raise Finding(
        "wrong output", f"The output is not this rank's tokens of the dense one, {one.when}."
    )


def _outputs(one: Trial) -> Iterator[tuple[str, str, list[Tensor]]]:
    """Wrong ideas about the forward, and what each would give on every rank."""
    n, ranks, x, bias = one.n, range(one.n), one.dense.xs[0], one.dense.bias
    whole = x + one.branch + bias

    def cut_up(y: Tensor) -> list[Tensor]:
        return [one.own(y, rank) for rank in ranks]

    yield (
        "bias n times",
        f"The bias was added {n} times: every rank added it before the sum.",
        cut_up(whole + (n - 1) * bias),
    )
    yield "bias left out", "The bias is missing.", cut_up(whole - bias)
    yield (
        "residual n times",
        f"x was added {n} times: before the sum, on every rank, and the sum took all of them.",
        cut_up(whole + (n - 1) * x),
    )
    yield "residual left out", "x itself is missing: the branch is added to it.", cut_up(whole - x)
    yield (
        "mean",
        f"The branch is divided by {n}. Each rank's part is a part of a sum; they add up.",
        cut_up(x + one.branch / n + bias),
    )
    yield (
        "own columns alone",
        "Each token has passed the columns of its own rank alone. It has to pass all of them: the "
        "other ranks' columns make parts of the same sum, and nobody has added them up.",
        [one.own(x, r) + one.part(r, one.own(one.normed(), r)) + bias for r in ranks],
    )
    dense = one.dense
    y = x + F.gelu(x @ dense.up.t()) @ dense.down.t() + bias
    yield "norm left out", "The norm is missing.", cut_up(y)
    y = x + F.gelu(one.normed() / dense.weight @ dense.up.t()) @ dense.down.t() + bias
    yield "weight left out", "The norm is there, without its weight.", cut_up(y)


def look_at_gradients(one: Trial) -> None:
    """A Finding where the first step's gradients are not those of the dense half block."""
    for rank, report in enumerate(one.reports):
        if report["grads"] is None or report["grads"][2] is None or report["grads"][3] is None:
            raise Finding(
                "no way back",
                f"From the output on rank {rank} no gradient finds back to up and down, "
                f"{one.when}. `course_lib.collectives` sends and keeps no graph; the pairs of "
                "`tensor_parallel.conjugates` do both.",
            )
    _debts(one)
    wanted = one.steps[0][1]
    for rank, report in enumerate(one.reports):
        right = one.parts(wanted, rank)
        wrong = [i for i, (g, r) in enumerate(zip(report["grads"], right, strict=True))
                 if not near(g, r)]  # fmt: skip
        if not wrong:
            continue
        grads = report["grads"]
        names = " and ".join(trial.NAMES[i] for i in wrong)
        if all(near(grads[i], one.n * right[i]) for i in wrong):
            raise Finding(
                "n times",
                f"On rank {rank} the gradient of {names} is {one.n} times what it should be, "
                f"{one.when}: it was summed, and what was summed was a whole gradient already.",
            )
        if all(near(grads[i], right[i] / one.n) for i in wrong):
            raise Finding(
                "divided by n",
                f"On rank {rank} the gradient of {names} is divided by {one.n}, {one.when}. Every "
                "token is on one rank alone: what the ranks have adds up, and is no mean.",
            )
        raise Finding(
            "wrong gradient",
            f"The output is right. The gradient of {names} on rank {rank} is not that of the "
            f"dense half block, {one.when}.",
        )


def _debts(one: Trial) -> None:
    """Gradients that are parts of sums, on every rank, and why."""
    grads = [report["grads"] for report in one.reports]
    dy, x = one.dense.dys[0], one.dense.xs[0]
    x_hat = one.normed() / one.dense.weight

    own = [one.through(rank) for rank in range(one.n)]  # of each rank's columns, all tokens
    total = torch.stack(own).sum(0)
    split = []  # what the other backward of a gather leaves for x
    for rank in range(one.n):
        leaf = one.own(x, rank).clone().requires_grad_()
        F.rms_norm(leaf, leaf.shape[-1:], one.dense.weight, trial.EPSILON).backward(
            one.own(own[rank], rank)
        )
        split.append(leaf.grad + one.own(dy, rank))
    if all(near(g[0], s) for g, s in zip(grads, split, strict=True)):
        raise Finding(
            "the other backward of a gather",
            f"Behind the gather each rank works with its own columns, so what comes back is a part "
            f"of a sum. You have cut it up, and not summed it, {one.when}. A gather has two right "
            "backwards; which one is meant here?",
        )
    weight = [one.own(total * x_hat, rank).sum((0, 1)) for rank in range(one.n)]
    bias = [one.own(dy, rank).sum((0, 1)) for rank in range(one.n)]
    unpaid = [
        name
        for name, place, alone in (("weight", 1, weight), ("bias", 4, bias))
        if all(near(g[place], a) for g, a in zip(grads, alone, strict=True))
    ]
    if unpaid:
        names = " and of the ".join(unpaid)
        raise Finding(
            "a copy's debt",
            f"Each rank has the gradient of the {names} from its own tokens alone, {one.when}. "
            "Every rank has a copy and uses it on other tokens: the gradient is the sum of all "
            "ranks'. Unpaid, the copies part at the first step, and the loss goes on falling.",
        )


def look_at_steps(one: Trial) -> None:
    """A Finding where a later step is not that of the dense half block."""
    for rank, report in enumerate(one.reports):
        for step, (out, grads) in enumerate(one.steps):
            seen = report["steps"][step] if step < len(report["steps"]) else {}
            found = [seen.get("out"), *(seen.get("grads") or [None] * 5)]
            wanted = [one.own(out, rank), *one.parts(grads, rank)]
            if not all(near(f, w) for f, w in zip(found, wanted, strict=True)):
                raise Finding(
                    "another second step",
                    f"Step {step + 1} of training is not the dense one's on rank {rank}, "
                    f"{one.when}, and step 1 is. Does your function keep something between calls?",
                )
