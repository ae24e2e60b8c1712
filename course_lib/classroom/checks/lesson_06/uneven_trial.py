"""What runs on the judge's ranks for `uneven_loss`: two steps of SGD of the table of positions.

Each rank has some tokens or none; a ledger counts both directions. The second step has a token
more, the same table, and another call between its forward and its backward. Lesson 06.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_06.pay_trial import agreed
from course_lib.collectives.call import Group
from course_lib.layout import cut

STEPS, RATE = 2, 0.3


class Sizes(NamedTuple):
    """Of one trial; the table is longer than the sequence."""

    b: int
    s: int
    h: int
    longest: int


class Numbers(NamedTuple):
    table: Tensor  # (longest, h)
    xs: list[Tensor]  # of each step: (b, length, h)
    targets: list[Tensor]  # the same


def numbers(sizes: Sizes, seed: int) -> Numbers:
    """The same on every rank, and on the judge."""
    made = torch.Generator().manual_seed(seed)
    b, s, h, longest = sizes

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64)

    xs, targets = ([some(b, s + step, h) for step in range(STEPS)] for _ in range(2))
    return Numbers(some(longest, h), xs, targets)


def run(function: Callable, group: Group, sizes: Sizes, seed: int) -> dict:
    """Two steps of `function(x, table, target, length, group)` with this rank's tokens."""
    dense, rank = numbers(sizes, seed), group.rank()
    table, steps = dense.table.clone().requires_grad_(), []  # one parameter for all steps
    for x, target in zip(dense.xs, dense.targets, strict=True):
        length = x.shape[1]
        x, target = (t.split(cut(length, group.size()), 1)[rank].clone() for t in (x, target))
        leaves = [x.requires_grad_(), table]
        before = [leaf.detach().clone() for leaf in (*leaves, target)]
        out, forward = bench.watched(
            lambda leaves=leaves, target=target, length=length: function(
                *leaves, target, length, group
            )
        )
        is_loss = isinstance(out, Tensor) and out.numel() == 1 and out.dtype == torch.float64
        is_loss = is_loss and not (out.is_sparse or out.is_meta)
        step = {
            **bench.described(out),
            "out": out.detach().item() if is_loss else None,
            "forward": forward,
            "backward": None,
            "grads": None,
            "changed": not all(map(torch.equal, before, (t.detach() for t in (*leaves, target)))),
        }
        steps.append(step)
        if not agreed(is_loss and out.requires_grad, group):
            break
        if len(steps) > 1:  # another call is alive when the backward begins
            others = [2 * t.detach() for t in (x, table, target)]
            other, _ = bench.watched(
                lambda others=others, length=length: function(
                    *(t.requires_grad_() for t in others[:2]), others[2], length, group
                )
            )
            step["out"] = out.detach().item()
            alike = isinstance(other, Tensor) and other.numel() == 1
            step["other"] = other.detach().item() if alike else None
        _, step["backward"] = bench.watched(out.sum().backward)
        step["grads"] = [torch.zeros_like(t) if t.grad is None else t.grad.clone() for t in leaves]
        with torch.no_grad():
            table -= RATE * step["grads"][1]
        table.grad = None
    return {**steps[0], "steps": steps}
