"""What runs on the judge's ranks for `promise`: two steps of a stack of layers at stage 3.

Each rank has rows of its own. Between any two layers, in both directions, the meter's watch counts
what is in memory and as large as a whole weight. Lesson 11.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.collectives.call import Group
from course_lib.memory.watch import Watch

STEPS, RATE = 2, 0.1
PATIENCE = 20  # times 10 ms


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


class Meter:
    """How many storages as large as a whole weight there are now, and where that was asked."""

    def __init__(self, watch: Watch, least: int):
        self.watch, self.least, self.patience = watch, least, PATIENCE
        self.forward: list[int] = []
        self.backward: list[int] = []

    def now(self, most: int) -> int:
        """A backend's thread may hold its copy of a message a moment longer: look again."""
        for _ in range(self.patience):
            found = sum(one.nbytes() >= self.least for one in self.watch.made_and_alive())
            if found <= most:
                return found
            time.sleep(0.01)
        self.patience = 1  # what has stayed once is no thread's copy
        return found


def run(function: Callable, sizes: Sizes, seed: int, group: Group) -> dict:
    """Two steps of SGD with the shards that `function(layers, group)` has given back."""
    n, rank = group.size(), group.rank()
    given = numbers(sizes, n, seed)
    with Watch() as watch:
        layers = stack(given)
        meter = Meter(watch, min(8 * weight.numel() for weight in given.weights))
        shards, built = bench.watched(lambda: function(layers, group))
        report = {"kind": type(shards).__name__, "built": built, "steps": [], "shards": None}
        wanted = [cut(_flat(w, b), n)[rank].numel() for w, b in _pairs(given)]
        entries = list(shards) if isinstance(shards, (list, tuple)) else []
        report["kinds"] = [type(one).__name__ for one in entries]
        report["sizes"] = [one.numel() for one in entries if isinstance(one, Tensor)]
        if report["sizes"] != wanted or len(entries) != len(wanted):
            return report
        report["leaves"] = [one.requires_grad and one.is_leaf for one in entries]
        report["shards"] = [one.detach().flatten().clone() for one in entries]
        report["held"] = meter.now(0)
        if not all(report["leaves"]):
            return report
        for x, dy in zip(given.xs, given.dys, strict=True):
            meter.forward, meter.backward = [], []
            report["steps"].append(_step(layers, entries, x[rank], dy[rank], meter))
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


def _step(layers: list[nn.Linear], shards: list[Tensor], x: Tensor, dy: Tensor, meter: Meter):
    complete = []  # how many layers have a complete weight, after each layer's forward

    def forward() -> Tensor:
        y = x.clone().requires_grad_()
        for layer in layers:
            y = torch.tanh(layer(y))
            y.register_hook(lambda grad: meter.backward.append(meter.now(2)))
            meter.forward.append(meter.now(1))
            complete.append(sum(_complete(layer.weight) for layer in layers))
        return y

    y, there = bench.watched(forward)
    _, back = bench.watched(lambda: y.backward(dy))
    grads = [None if s.grad is None else s.grad.detach().flatten().clone() for s in shards]
    return {
        "out": y.detach().clone(),
        "grads": grads,
        "forward": there,
        "backward": back,
        "in_forward": meter.forward,
        "in_backward": meter.backward,
        "complete": complete,
        "after": meter.now(0),
    }


def _complete(weight: Tensor) -> bool:
    return weight.numel() > 0 and weight.untyped_storage().nbytes() > 0
