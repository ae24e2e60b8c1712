"""What runs on the judge's ranks for `promise`: two steps of a stack of layers at stage 3.

Each rank has rows of its own. Between any two layers, in both directions, the meter's watch counts
what is in memory and as large as a whole weight. Lesson 11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_11.meter import Meter, is_plain
from course_lib.collectives.call import Group
from course_lib.memory.watch import Watch

STEPS, RATE = 3, 0.1  # in the third step there is another stack at the same time


class Sizes(NamedTuple):
    """Of one trial: rows of a rank, and the width before and behind each layer."""

    b: int
    widths: tuple[int, ...]


class Numbers(NamedTuple):
    """The same on every rank, and on the judge."""

    weights: list[Tensor]  # (out, in) each
    biases: list[Tensor]
    xs: Tensor  # (step, n, b, first)
    dys: Tensor  # (step, n, b, last)


def numbers(sizes: Sizes, n: int, seed: int) -> Numbers:
    made = torch.Generator().manual_seed(seed)
    pairs = list(zip(sizes.widths, sizes.widths[1:], strict=False))

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64)

    return Numbers(
        [random(wide, narrow) / 3 for narrow, wide in pairs],
        [random(wide) for _, wide in pairs],
        random(STEPS, n, sizes.b, sizes.widths[0]),
        random(STEPS, n, sizes.b, sizes.widths[-1]),
    )


def stack(numbers: Numbers) -> list[nn.Linear]:
    """The layers, whole."""
    layers = []
    for weight, bias in zip(numbers.weights, numbers.biases, strict=True):
        layer = nn.Linear(1, 1, device="meta")
        layer.weight = nn.Parameter(weight.clone())
        layer.bias = nn.Parameter(bias.clone())
        layers.append(layer)
    return layers


def cut(flat: Tensor, n: int) -> list[Tensor]:
    """A flat tensor in n pieces of one length, filled up with zeros."""
    return list(nn.functional.pad(flat, (0, -flat.numel() % n)).chunk(n))


def run(function: Callable, group: Group, widths: Sequence[int], b: int, seed: int) -> dict:
    """Three steps of SGD with the shards that `function(layers, group)` has given back."""
    n, rank = group.size(), group.rank()
    given = numbers(Sizes(b, tuple(widths)), n, seed)
    with Watch() as watch:
        layers = stack(given)
        meter = Meter(watch, min(8 * weight.numel() for weight in given.weights))
        shards, built = bench.watched(lambda: function(layers, group))
        report = {"kind": type(shards).__name__, "built": built, "steps": [], "shards": None}
        wanted = [cut(_flat(w, b), n)[rank].numel() for w, b in _pairs(given)]
        entries = list(shards) if isinstance(shards, (list, tuple)) else []
        report["kinds"] = [type(one).__name__ for one in entries]
        report["sizes"] = [one.numel() for one in entries if isinstance(one, Tensor)]
        report["plain"] = all(is_plain(one) for one in entries if isinstance(one, Tensor))
        if report["sizes"] != wanted or len(entries) != len(wanted) or not report["plain"]:
            return report
        report["leaves"] = [one.requires_grad and one.is_leaf for one in entries]
        report["shards"] = [one.detach().flatten().clone() for one in entries]
        report["held"] = meter.now(0)
        if not all(report["leaves"]):
            return report
        for step, (x, dy) in enumerate(zip(given.xs, given.dys, strict=True)):
            beside = None
            if step == STEPS - 1:
                beside, other = stack(given), None
                other, _ = bench.watched(lambda made=beside: function(made, group))
                report["again"] = len(other) if isinstance(other, (list, tuple)) else None
            report["steps"].append(_step(layers, entries, x[rank], dy[rank], meter, beside))
            if report["steps"][-1]["grads"] is None or None in report["steps"][-1]["grads"]:
                break
            with torch.no_grad():
                for one in entries:
                    one -= RATE * one.grad.view_as(one)
                    one.grad = None
    return report


def _pairs(given: Numbers):
    return zip(given.weights, given.biases, strict=True)


def _flat(weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat((weight.flatten(), bias))


def _step(
    layers: list[nn.Linear],
    shards: list[Tensor],
    x: Tensor,
    dy: Tensor,
    meter: Meter,
    beside: list[nn.Linear] | None,
) -> dict:
    """A step; between its forward and its backward there is the forward of another stack."""
    in_forward, in_backward = [], []
    complete = []  # how many layers have a complete weight, after each layer's forward

    def forward() -> Tensor:
        y = x.clone().requires_grad_()
        for layer in layers:
            y = torch.tanh(layer(y))
            y.register_hook(lambda grad: in_backward.append(meter.now(2)))
            in_forward.append(meter.now(1))
            complete.append(sum(_complete(layer.weight) for layer in layers))
        return y

    y, there = bench.watched(forward)
    if beside:
        more, _ = bench.watched(lambda: _through(beside, 1 - x))
    _, back = bench.watched(lambda: y.backward(dy))
    if beside:
        bench.watched(lambda: more.backward(dy))
    grads = [None if s.grad is None else s.grad.detach().flatten().clone() for s in shards]
    return {
        "out": y.detach().clone(),
        "grads": grads,
        "forward": there,
        "backward": back,
        "in_forward": in_forward,
        "in_backward": in_backward,
        "complete": complete,
        "after": meter.now(0),
    }


def _through(layers: list[nn.Linear], x: Tensor) -> Tensor:
    for layer in layers:
        x = torch.tanh(layer(x))
    return x


def _complete(weight: Tensor) -> bool:
    return weight.numel() > 0 and weight.untyped_storage().nbytes() > 0
