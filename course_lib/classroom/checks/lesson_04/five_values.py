"""Is it the dense MLP: output, five gradients, two steps? If not, which idea gives these numbers?

For `five_to_two` of lesson 04. Each wrong idea is computed and compared, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_04 import trial
from course_lib.classroom.checks.looking import near, refuse_general
from course_lib.layout import span

NAMES = ("x", *trial.PARAMETERS)


class Trial:
    """Two steps of the learner's function on a group, beside the dense MLP."""

    def __init__(self, reports: list[dict], sizes: trial.Sizes, seed: int, when: str):
        self.reports, self.sizes, self.when = reports, sizes, when
        self.n = len(reports)
        self.dense = trial.numbers(sizes, seed)

    def own(self, rank: int) -> slice:
        return slice(*span(self.sizes.f, self.n, rank))

    def shards(self, rank: int, weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What a rank holds of gate, up, down and bias, or of their gradients."""
        gate, up, down, bias = weights
        own = self.own(rank)
        return gate[own], up[own], down[:, own], bias

    @cached_property
    def steps(self) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
        """Of the dense MLP, for each step: the output and the gradients of x and the weights."""
        weights, found = tuple(self.dense[:4]), []
        for x, dy in zip(*map(trial.batches, (self.dense.xs, self.dense.dys)), strict=True):
            leaves = [t.detach().clone().requires_grad_() for t in (x, *weights)]
            y = trial.swiglu(*leaves)
            y.backward(dy)
            grads = tuple(leaf.grad for leaf in leaves)
            found.append((y.detach(), grads))
            weights = tuple(
                w.detach() - trial.RATE * g for w, g in zip(leaves[1:], grads[1:], strict=True)
            )
        return found

    def outputs_right(self) -> bool:
        return all(near(report["out"], self.steps[0][0]) for report in self.reports)

    def first_step_right(self, tolerance: float) -> bool:
        """Whether output and gradients are those of the first step, to a tolerance."""
        y, grads = self.steps[0]
        for rank, report in enumerate(self.reports):
            wanted = (y, grads[0], *self.shards(rank, grads[1:]))
            for seen, right in zip((report["out"], *report["grads"]), wanted, strict=True):
                if seen is None or seen.shape != right.shape:
                    return False
                if not (seen - right).abs().max() <= tolerance * (1 + right.abs().max()):
                    return False
        return True

    def part(self, rank: int) -> Tensor:
        """A rank's part of the first output's sum, without the bias."""
        gate, up, down, bias = self.shards(rank, tuple(self.dense[:4]))
        return trial.swiglu(self.dense.xs[0], gate, up, down, 0 * bias)

    def debts(self, rank: int) -> tuple[Tensor, Tensor]:
        """A rank's part of x's gradient, what came back by gate and what by up."""
        found = []
        for way in range(2):
            leaves = [self.dense.xs[0].clone().requires_grad_() for _ in range(2)]
            gate, up, down, _ = self.shards(rank, tuple(self.dense[:4]))
            y = F.silu(leaves[0] @ gate.t()) * (leaves[1] @ up.t()) @ down.t()
            y.backward(self.dense.dys[0])
            found.append(leaves[way].grad)
        return found[0], found[1]


def look_at_output(one: Trial) -> None:
    """A Finding where some rank's output is not the dense one."""
    if one.outputs_right():
        return
    outs = [report["out"] for report in one.reports]
    for name, text, wanted in _outputs(one):
        if all(near(out, want) for out, want in zip(outs, wanted, strict=True)):
            raise Finding(name, f"{text} ({one.when}.)")
    right = [rank for rank, out in enumerate(outs) if near(out, one.steps[0][0])]
    if right:
        raise Finding(
            "not on every rank",
            f"{one.when.capitalize()} the output is right on rank {' and '.join(map(str, right))} "
            "alone; the next layer needs it on every rank.",
        )
    b, s, *_ = one.sizes
    refuse_general(outs, [one.steps[0][0]] * one.n, one.when, sizes={"sequences": b, "tokens": s})
    raise Finding("wrong output", f"The output is not that of the dense MLP {one.when}.")


def _outputs(one: Trial) -> Iterator[tuple[str, str, list[Tensor]]]:
    """Wrong ideas about the forward, and the output that each would give on every rank."""
    n, bias = one.n, one.dense.bias
    parts = [one.part(rank) for rank in range(n)]
    total = torch.stack(parts).sum(0)
    x, gate, up, down = one.dense.xs[0], *one.dense[:3]
    yield (
        "sum left out",
        "Each rank has its own term of the output. The terms were not added up: an all-reduce is "
        "missing.",
        [part + bias for part in parts],
    )
    yield (
        "sum left out",
        "Each rank has its own term of the output, without the bias. The terms have to be summed.",
        parts,
    )
    yield (
        "bias n times",
        f"The bias was added {n} times: every rank added it before the sum.",
        [total + n * bias] * n,
    )
    yield "bias left out", "The bias is missing.", [total] * n
    yield (
        "bias divided",
        f"Only 1/{n} of the bias is in it. After the sum there is one output, and the bias is "
        "added to it once, undivided.",
        [total + bias / n] * n,
    )
    yield (
        "summed twice",
        f"The sum is {n} times too large: it was summed, and the sum was summed again.",
        [n * total + bias] * n,
    )
    yield (
        "mean",
        f"That is the mean of the ranks' terms: the sum, divided by {n}. The terms add up.",
        [total / n + bias] * n,
    )
    other = trial.swiglu(x, up, gate, down, bias)
    yield "gate and up exchanged", "SiLU was applied to up; it belongs on gate.", [other] * n
    swapped = [trial.swiglu(n * x, *one.shards(rank, one.dense[:4])) for rank in range(n)]
    yield (
        "f and g exchanged",
        "x was summed on its way in, and the output was not. x is replicated; what is partial, and "
        "has to be summed, is the output.",
        swapped,
    )
    for bend in (F.gelu, F.relu, torch.sigmoid):
        y = bend(x @ gate.t()) * (x @ up.t()) @ down.t() + bias
        yield (
            "another bend",
            "The activation function of this MLP is SiLU, x · sigmoid(x).",
            [y] * n,
        )
    y = F.silu((x @ gate.t()) * (x @ up.t())) @ down.t() + bias
    yield "bend over both", "SiLU is applied to gate alone; up is multiplied afterwards.", [y] * n


def look_at_gradients(one: Trial) -> None:
    """A Finding where the first step's gradients are not those of the dense MLP."""
    for rank, report in enumerate(one.reports):
        if report["grads"] is None:
            raise Finding(
                "no way back",
                f"The output is right, and nothing leads back from it on rank {rank}: it has no "
                "history, so no weight would learn. Was something detached?",
            )
    _, grads = one.steps[0]
    wanted = [(grads[0], *one.shards(rank, grads[1:])) for rank in range(one.n)]
    found = [report["grads"] for report in one.reports]
    wrong = [
        name
        for i, name in enumerate(NAMES)
        if not all(near(f[i], w[i]) for f, w in zip(found, wanted, strict=True))
    ]
    if not wrong:
        return
    head = f"The output is right, the gradient of {_listed(wrong)} is not ({one.when}). "
    for name, text in _gradient_ideas(one, wrong, found, wanted):
        raise Finding(name, head + text)
    sizes = {"sequences": one.sizes.b, "tokens": one.sizes.b * one.sizes.s}
    for i in map(NAMES.index, wrong):
        seen, right = [f[i] for f in found], [w[i] for w in wanted]
        what = f"gradient of {NAMES[i]}"
        refuse_general(seen, right, one.when, sizes=sizes, what=what)
    raise Finding(
        "wrong gradient", f"{head}Which gradients are partial, and where are they summed?"
    )


def _gradient_ideas(one: Trial, wrong, found, wanted) -> Iterator[tuple[str, str]]:
    """Wrong ideas about the backward that these gradients show: name and text."""
    n = one.n
    at = {name: i for i, name in enumerate(NAMES)}

    def times(name: str, factor: float) -> bool:
        i = at[name]
        return all(near(f[i], factor * w[i]) for f, w in zip(found, wanted, strict=True))

    if all(f[at[name]] is None for f in found for name in wrong):
        yield "weights left out", "It is None: this tensor was detached, or copied without history."
    if wrong == ["x"]:
        debts = [one.debts(rank) for rank in range(n)]
        dxs = [f[0] for f in found]
        if all(near(dx, a + b) for dx, (a, b) in zip(dxs, debts, strict=True)):
            yield (
                "f left out",
                "Each rank has the term that came back through its own shards. x went to all "
                "ranks, so its gradient is the sum of all their terms.",
            )
        for way in range(2):
            summed = torch.stack([debt[way] for debt in debts]).sum(0)
            if all(near(dx, summed + d[1 - way]) for dx, d in zip(dxs, debts, strict=True)):
                yield (
                    "one branch without f",
                    f"What comes back by {NAMES[1 + way]} is summed over the ranks, what comes "
                    f"back by {NAMES[2 - way]} is each rank's own. Both read x.",
                )
        if times("x", n):
            yield "f twice", f"It is {n} times too large: it was summed twice on its way."
    inner = [name for name in ("x", "gate", "up", "down") if name in wrong]
    if len(inner) == 4 and all(times(name, n) for name in inner):
        yield (
            "sum of equal gradients",
            f"They are {n} times too large: the gradient of the sum is the same on every rank, "
            "and was summed once more. The backward of g sends nothing.",
        )
    if wrong == ["bias"]:
        if times("bias", 1 / n):
            yield (
                "bias in n parts",
                f"It is {n} times too small: each rank added a part of the bias before the sum. "
                "The bias is replicated, and would learn at another speed.",
            )
        if times("bias", n):
            yield "f on the bias", f"It is {n} times too large: equal gradients were summed."
        empty = [f[at["bias"]] is None or not f[at["bias"]].any() for f in found]
        if any(empty) and not all(empty):
            yield (
                "bias on one rank",
                "Only some ranks get one: the bias was added there, before the sum. The other "
                "ranks' copies would not move, and after a step the ranks hold different biases.",
            )


def look_at_steps(one: Trial) -> None:
    """A Finding where a later step goes another way than the dense MLP's."""
    for rank, report in enumerate(one.reports):
        for step, (y, grads) in enumerate(one.steps):
            wanted = (y, grads[0], *one.shards(rank, grads[1:]))
            mine = report["steps"][step]
            found = (mine["out"], *(mine["grads"] or [None] * len(NAMES)))
            if not all(near(f, w) for f, w in zip(found, wanted, strict=True)):
                raise Finding(
                    "another second step",
                    f"Step {step + 1} of training is not that of the dense MLP on rank {rank} "
                    f"{one.when}, and step 1 is. Does your function keep something between calls?",
                )


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
