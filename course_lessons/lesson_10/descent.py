"""Descent steps with gradients summed over all ranks, and buckets for reduce-scatter. Lesson 10."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

RATE = 0.05


class Step(NamedTuple):
    """A step: each rank's gradients of the parameters that it used, and the sums over the ranks."""

    number: int
    each: list[dict[Tensor, Tensor]]
    sums: dict[Tensor, Tensor]


def steps(
    parameters: Sequence[Tensor], loss: Callable[[int, int], Tensor], numbers: Iterable[int], n: int
) -> Iterator[Step]:
    """Yield the steps of one process; `loss` takes a step's number and a rank."""
    for number in numbers:
        losses = (loss(number, rank) for rank in range(n))
        grads = [torch.autograd.grad(one, parameters, allow_unused=True) for one in losses]
        pairs = [zip(parameters, own, strict=True) for own in grads]
        each = [{p: grad for p, grad in own if grad is not None} for own in pairs]
        sums = {p: sum((own[p] for own in each if p in own), 0 * p.detach()) for p in parameters}
        yield Step(number, each, sums)
        with torch.no_grad():
            for p, grad in sums.items():
                p -= RATE * grad


def padded(flat: Tensor, n: int, front: bool = False) -> Tensor:
    """Pad a tensor with zeros at the end, or at the front, to a multiple of n."""
    zeros = -len(flat) % n
    return F.pad(flat, (zeros, 0) if front else (0, zeros))


def bucket(of: Mapping, order: Iterable[Tensor], n: int, each: bool = False) -> Tensor:
    """Join gradients in the given order; pad the result at the end, or `each` gradient."""
    parts = [of[p].detach().flatten() for p in order]
    return padded(torch.cat([padded(x, n) for x in parts] if each else parts), n)
