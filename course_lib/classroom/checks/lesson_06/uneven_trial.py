"""What runs on the judge's ranks for `uneven_loss`: two steps of SGD of the table of positions.

Each rank has some tokens or none; a ledger counts both directions. Lesson 06.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks import bench
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
    xs: Tensor  # (step, b, s, h)
    targets: Tensor  # (step, b, s, h)


def numbers(sizes: Sizes, seed: int) -> Numbers:
    """The same on every rank, and on the judge."""
    made = torch.Generator().manual_seed(seed)
    b, s, h, longest = sizes
    shapes = [(longest, h), (STEPS, b, s, h), (STEPS, b, s, h)]
    return Numbers(*(torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes))


def run(function: Callable, group: Group, sizes: Sizes, seed: int) -> dict:
    """Two steps of `function(x, table, target, length, group)` with this rank's tokens."""
    dense, rank = numbers(sizes, seed), group.rank()
    tokens, table, steps = cut(sizes.s, group.size()), dense.table, []
    for x, target in zip(dense.xs, dense.targets, strict=True):
        x, target = (t.split(tokens, 1)[rank].clone() for t in (x, target))
        leaves = [x.requires_grad_(), table.clone().requires_grad_()]
        before = [leaf.detach().clone() for leaf in leaves]
        out, forward = bench.watched(
            lambda leaves=leaves, target=target: function(*leaves, target, sizes.s, group)
        )
        is_loss = isinstance(out, Tensor) and out.numel() == 1 and out.dtype == torch.float64
        step = {
            **bench.described(out),
            "out": out.detach().item() if is_loss else None,
            "forward": forward,
            "backward": None,
            "grads": None,
            "changed": not all(map(torch.equal, before, (leaf.detach() for leaf in leaves))),
        }
        steps.append(step)
        if not is_loss or not out.requires_grad:
            break
        _, step["backward"] = bench.watched(out.sum().backward)
        step["grads"] = [torch.zeros_like(t) if t.grad is None else t.grad.clone() for t in leaves]
        table = (leaves[1] - RATE * step["grads"][1]).detach()
    return {**steps[0], "steps": steps}
