"""What runs on the judge's ranks for `promise`: three steps of a stack of layers at stage 3.

Each rank has rows of its own. Between any two layers, in both directions, the meter's watch counts
what is in memory and as large as a whole weight. Lesson 11.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_11.meter import Meter
from course_lib.collectives.call import Group
from course_lib.memory.watch import Watch

STEPS, RATE = 3, 0.1  # in the third step there is another stack at the same time


class Numbers(NamedTuple):
    """The same on every rank, and on the judge."""

    weights: list[Tensor]  # (out, in) each
    biases: list[Tensor]
    xs: Tensor  # (step, n, b, first)
    dys: Tensor  # (step, n, b, last)


def numbers(widths: list[int], b: int, n: int, seed: int) -> Numbers:
    """For layers with these widths before and after each, and b rows on each rank."""
    made = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64)

    return Numbers(
        [random(wide, narrow) / 3 for narrow, wide in pairwise(widths)],
        [random(wide) for wide in widths[1:]],
        random(STEPS, n, b, widths[0]),
        random(STEPS, n, b, widths[-1]),
    )


def stack(given: Numbers) -> list[nn.Linear]:
    """The layers, whole."""
    layers = []
    for weight, bias in zip(given.weights, given.biases, strict=True):
        layers.append(nn.Linear(1, 1, device="meta"))
        layers[-1].weight, layers[-1].bias = (nn.Parameter(t.clone()) for t in (weight, bias))
    return layers


def flat(weight: Tensor, bias: Tensor) -> Tensor:
    """Weight and bias end to end."""
    return torch.cat((weight.flatten(), bias))


def cut(flat: Tensor, n: int) -> list[Tensor]:
    """A flat tensor in n pieces of one length, filled up with zeros."""
    return list(nn.functional.pad(flat, (0, -flat.numel() % n)).chunk(n))


def dense(given: Numbers) -> list[tuple[Tensor, list[list[Tensor]]]]:
    """(outputs of each rank, each rank's own gradients, a flat one for each layer) of each step."""
    layers, steps = stack(given), []
    parameters = [p for layer in layers for p in (layer.weight, layer.bias)]
    for xs, dys in zip(given.xs, given.dys, strict=True):
        outs = [through(layers, x) for x in xs]
        alone = [torch.autograd.grad(y, parameters, dy) for y, dy in zip(outs, dys, strict=True)]
        flats = [list(map(flat, grads[::2], grads[1::2])) for grads in alone]
        steps.append((torch.stack(outs).detach(), flats))
        with torch.no_grad():
            for p, *grads in zip(parameters, *alone, strict=True):
                p -= RATE * sum(grads)
    return steps


def run(function: Callable, group: Group, widths: list[int], b: int, seed: int) -> dict:
    """Three steps of SGD with the shards that `function(layers, group)` has given back."""
    n, rank = group.size(), group.rank()
    given = numbers(widths, b, n, seed)
    with Watch() as watch:
        layers = stack(given)
        meter = Meter(watch, min(weight.nbytes for weight in given.weights))
        out, _ = bench.watched(lambda: function(layers, group))
        shards = list(out) if isinstance(out, (list, tuple)) else []
        tensors = [one for one in shards if isinstance(one, Tensor)]
        report = {
            "kind": type(out).__name__,
            "kinds": [type(one).__name__ for one in shards],
            "sizes": [one.numel() for one in tensors],
            "plain": all(map(bench.plain, tensors)),
            "leaves": all(one.requires_grad and one.is_leaf for one in tensors),
            "shards": None,
            "steps": [],
        }
        pairs = zip(given.weights, given.biases, strict=True)
        wanted = [cut(flat(*pair), n)[rank].numel() for pair in pairs]
        if report["sizes"] != wanted or len(shards) != len(wanted) or not report["plain"]:
            return report
        report["shards"] = [one.detach().flatten().clone() for one in shards]
        report["held"] = meter.now(0)
        if not report["leaves"]:
            return report
        for step, (x, dy) in enumerate(zip(given.xs[:, rank], given.dys[:, rank], strict=True)):
            beside = stack(given) if step == STEPS - 1 else []
            if beside:
                other, _ = bench.watched(lambda made=beside: function(made, group))
                report["again"] = len(other) if isinstance(other, (list, tuple)) else None
            report["steps"].append(_step(layers, shards, x, dy, meter, beside))
            if None in report["steps"][-1]["grads"]:
                break
            with torch.no_grad():
                for one in shards:
                    one -= RATE * one.grad.view_as(one)
                    one.grad = None
    return report


def _step(
    layers: list[nn.Linear],
    shards: list[Tensor],
    x: Tensor,
    dy: Tensor,
    meter: Meter,
    beside: list[nn.Linear],
) -> dict:
    """A step; between its forward and its backward there is the forward of another stack."""
    notes = {"in_forward": [], "in_backward": []}
    complete = []  # how many layers have a complete weight, after each layer's forward

    def after_layer(y: Tensor) -> None:
        y.register_hook(lambda grad: notes["in_backward"].append(meter.now(2)))
        notes["in_forward"].append(meter.now(1))
        weights = [layer.weight for layer in layers if layer.weight.numel()]
        complete.append(sum(w.untyped_storage().nbytes() > 0 for w in weights))

    start = x.clone().requires_grad_()
    y, there = bench.watched(lambda: through(layers, start, after_layer))
    if beside:
        more, _ = bench.watched(lambda: through(beside, 1 - x))
    _, back = bench.watched(lambda: y.backward(dy))
    if beside:
        bench.watched(lambda: more.backward(dy))
    grads = [None if s.grad is None else s.grad.detach().flatten().clone() for s in shards]
    values = {"out": y.detach().clone(), "grads": grads, "complete": complete}
    return {**values, **notes, "forward": there, "backward": back, "after": meter.now(0)}


def through(layers: list[nn.Linear], x: Tensor, after_layer: Callable = lambda y: None) -> Tensor:
    """The rows after the stack, with a tanh after each layer."""
    for layer in layers:
        x = torch.tanh(layer(x))
        after_layer(x)
    return x
