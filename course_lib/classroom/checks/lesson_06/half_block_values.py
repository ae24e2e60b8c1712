"""Is it the dense half block: output, five gradients, two steps? If not, which idea gives these?

For `sequence_mlp` of lesson 06. Each wrong idea is computed and compared, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_06 import half_block_trial as trial
from course_lib.classroom.checks.looking import (
    Idea,
    all_near,
    another_step,
    near,
    refuse_general,
    refuse_idea,
)
from course_lib.layout import span


class Trial:
    """Two steps of the learner's function on a group, beside the dense half block."""

    def __init__(self, reports: list[dict], sizes: trial.Sizes, seed: int, when: str):
        self.reports, self.sizes, self.when = reports, sizes, when
        self.n = len(reports)
        self.tokens = trial.tokens_of(sizes.s, self.n)
        self.dense = trial.numbers(sizes, seed)

    def units(self, rank: int) -> slice:
        return slice(*span(self.sizes.f, self.n, rank))

    def own(self, whole: Tensor, rank: int) -> Tensor:
        return whole.split(trial.tokens_of(whole.shape[1], self.n), 1)[rank]

    def parts(self, grads: tuple[Tensor, ...], rank: int) -> list[Tensor]:
        """What a rank should have of the gradients of x, weight, up, down and bias."""
        x, weight, up, down, bias = grads
        units = self.units(rank)
        return [self.own(x, rank), weight, up[units], down[:, units], bias]

    @cached_property
    def steps(self) -> list[tuple[Tensor, tuple[Tensor, ...], Tensor]]:
        """Of the dense half block, for each step: the output, the five gradients, and the output
        where all inputs are twice as large."""
        weights, found = tuple(self.dense[:4]), []
        for x, dy in zip(self.dense.xs, self.dense.dys, strict=True):
            leaves = [t.detach().clone().requires_grad_() for t in (x, *weights)]
            y = trial.half(*leaves)
            y.backward(dy)
            grads = tuple(leaf.grad for leaf in leaves)
            found.append((y.detach(), grads, trial.half(*(2 * t.detach() for t in leaves))))
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
    if all_near(outs, [one.own(right, rank) for rank in range(one.n)]):
        return
    refuse_idea(outs, _outputs(one), one.when)
    b, s, h, _ = one.sizes
    sizes = {"sequences": b, "tokens": s, "elements of a token": h}
    refuse_general(
        outs, [one.own(right, rank) for rank in range(one.n)], one.when, sizes=sizes, what="output"
    )
    raise Finding(
        "wrong output", f"The output is not this rank's tokens of the dense one, {one.when}."
    )


def _outputs(one: Trial) -> Iterator[Idea]:
    """Wrong ideas about the forward, and what each would give on every rank."""
    n, ranks, x, bias = one.n, range(one.n), one.dense.xs[0], one.dense.bias
    whole = x + one.branch + bias

    def cut_up(y: Tensor) -> list[Tensor]:
        return [one.own(y, rank) for rank in ranks]

    yield Idea(
        "bias n times",
        f"The bias was added {n} times: every rank added it before the sum.",
        cut_up(whole + (n - 1) * bias),
    )
    yield Idea("bias left out", "The bias is missing.", cut_up(whole - bias))
    yield Idea(
        "residual n times",
        f"x was added {n} times: before the sum, on every rank, and the sum took all of them.",
        cut_up(whole + (n - 1) * x),
    )
    yield Idea(
        "residual left out",
        "x itself is missing: the branch is added to it.",
        cut_up(whole - x),
    )
    yield Idea(
        "mean",
        f"The branch is divided by {n}. Each rank's part is a part of a sum; they add up.",
        cut_up(x + one.branch / n + bias),
    )
    yield Idea(
        "own columns alone",
        "Each token has passed the columns of its own rank alone. It has to pass all of them: the "
        "other ranks' columns make parts of the same sum, and they have not been added up.",
        [one.own(x, r) + one.part(r, one.own(one.normed(), r)) + bias for r in ranks],
    )
    dense = one.dense
    y = x + F.gelu(x @ dense.up.t()) @ dense.down.t() + bias
    yield Idea("norm left out", "The norm is missing.", cut_up(y))
    y = x + F.gelu(one.normed() / dense.weight @ dense.up.t()) @ dense.down.t() + bias
    yield Idea("weight left out", "The norm is there, without its weight.", cut_up(y))

    def block(normed: Tensor, bend: Callable[[Tensor], Tensor] = F.gelu) -> list[Tensor]:
        return cut_up(x + bend(normed @ dense.up.t()) @ dense.down.t() + bias)

    h, weight, normed = (one.sizes.h,), dense.weight, one.normed()
    for epsilon in (0, 1e-8, 1e-6, 1e-4, torch.finfo(x.dtype).eps):
        name, text = (
            "another epsilon",
            f"The norm adds {epsilon:g} to the mean of squares, not 1e-5.",
        )
        yield Idea(name, text, block(F.rms_norm(x, h, weight, epsilon)))
    yield Idea(
        "another norm",
        "That is LayerNorm, which subtracts the mean. Wanted is RMSNorm, which does not.",
        block(F.layer_norm(x, h, weight, None, trial.EPSILON)),
    )
    yield Idea("activation left out", "The GELU is missing.", block(normed, lambda wide: wide))
    yield Idea(
        "GELU by tanh",
        "That is GELU's approximation by tanh; wanted is GELU itself, as in the wiring above.",
        block(normed, lambda wide: F.gelu(wide, approximate="tanh")),
    )
    product = normed @ dense.up.t() @ dense.down.t()
    yield Idea(
        "activation after the sum",
        "GELU stands after the product by rows. It stands between the two products, on each "
        "rank's own columns.",
        cut_up(x + F.gelu(product) + bias),
    )
    yield Idea(
        "residual normed",
        "The residual is the norm's output. It is x, as it came in.",
        cut_up(whole - x + normed),
    )


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
    grads = [report["grads"] for report in one.reports]
    refuse_idea([g[0] for g in grads], [_cut_not_summed(one)], one.when)
    dx, dy = one.steps[0][1][0], one.dense.dys[0]
    branch_alone = Idea(
        "no way back by the residual",
        "The gradient of x has come back by the branch alone. x is also the residual, and what "
        "comes back by it is the output's gradient itself.",
        [one.own(dx - dy, rank) for rank in range(one.n)],
    )
    refuse_idea([g[0] for g in grads], [branch_alone], one.when)
    _refuse_unpaid(one, grads)
    for rank, mine in enumerate(grads):
        right = one.parts(one.steps[0][1], rank)
        wrong = [i for i, (g, r) in enumerate(zip(mine, right, strict=True)) if not near(g, r)]
        if not wrong:
            continue
        names = " and ".join(trial.NAMES[i] for i in wrong)
        head = f"On rank {rank} the gradient of {names} is "
        if all(near(mine[i], one.n * right[i]) for i in wrong):
            raise Finding(
                "n times",
                f"{head}{one.n} times what it should be, {one.when}: it was summed, and what was "
                "summed was a whole gradient already.",
            )
        if all(near(mine[i], right[i] / one.n) for i in wrong):
            raise Finding(
                "divided by n",
                f"{head}divided by {one.n}, {one.when}. Every token is on one rank alone: what the "
                "ranks have adds up, and is no mean.",
            )
        raise Finding(
            "wrong gradient",
            f"The output is right. {head}not that of the dense half block, {one.when}.",
        )


def _cut_not_summed(one: Trial) -> Idea:
    """The other backward of a gather, and what it leaves for x."""
    given = []
    for rank in range(one.n):
        leaf = one.own(one.dense.xs[0], rank).clone().requires_grad_()
        F.rms_norm(leaf, leaf.shape[-1:], one.dense.weight, trial.EPSILON).backward(
            one.own(one.through(rank), rank)
        )
        given.append(leaf.grad + one.own(one.dense.dys[0], rank))
    return Idea(
        "the other backward of a gather",
        "After the gather each rank works with its own columns, so what comes back is a partial "
        "sum. You have split it up, and not summed it. A gather has two right backwards; which one "
        "is meant here?",
        given,
    )


def _refuse_unpaid(one: Trial, grads: list[list[Tensor]]) -> None:
    """A Finding where gradients of copies are those of a rank's own tokens alone."""
    dy, x_hat = one.dense.dys[0], one.normed() / one.dense.weight
    total = torch.stack([one.through(rank) for rank in range(one.n)]).sum(0)
    weight, bias = (
        [one.own(terms, rank).sum((0, 1)) for rank in range(one.n)] for terms in (total * x_hat, dy)
    )
    unpaid = [
        name
        for name, place, alone in (("weight", 1, weight), ("bias", 4, bias))
        if all_near([g[place] for g in grads], alone)
    ]
    if unpaid:
        names = " and of the ".join(unpaid)
        raise Finding(
            "a copy's debt",
            f"Each rank has the gradient of the {names} from its own tokens alone, {one.when}. "
            "Every rank has a copy and uses it on other tokens: the gradient is the sum of all "
            "ranks'. Without it the copies drift from the first step on, and the loss still falls.",
        )


def look_at_steps(one: Trial) -> None:
    """A Finding where a later step is not that of the dense half block."""
    for rank, report in enumerate(one.reports):
        for step, (out, grads, twice) in enumerate(one.steps):
            seen = report["steps"][step] if step < len(report["steps"]) else {}
            found = [seen.get("out"), *(seen.get("grads") or [None] * 5)]
            right = [one.own(out, rank), *one.parts(grads, rank)]
            if step:
                found, right = [*found, seen.get("other")], [*right, one.own(twice, rank)]
            if not all_near(found, right):
                raise another_step(one, rank, step)
