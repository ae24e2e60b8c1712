"""What runs on the judge's ranks for `sequence_mlp`: two steps of training of half a block.

Under a ledger in both directions; between them the meter says how many tensors of all tokens, as
wide as x, the answer has left alive. Lesson 06.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.collectives.call import Group
from course_lib.layout import cut, span
from course_lib.memory.watch import Watch

STEPS, RATE = 2, 0.1
NAMES = ("x", "weight", "up", "down", "bias")
EPSILON = 1e-5
PATIENCE = 20  # times 10 ms


class Sizes(NamedTuple):
    """Of one trial; a rank's part of f is smaller than h, so that no inner tensor is as wide."""

    b: int
    s: int
    h: int
    f: int


class Numbers(NamedTuple):
    weight: Tensor  # (h,)
    up: Tensor  # (f, h)
    down: Tensor  # (h, f)
    bias: Tensor  # (h,)
    xs: Tensor  # (step, b, s, h)
    dys: Tensor  # (step, b, s, h)


def numbers(sizes: Sizes, seed: int) -> Numbers:
    """The same on every rank, and on the judge."""
    made = torch.Generator().manual_seed(seed)
    b, s, h, f = sizes
    shapes = [(h,), (f, h), (h, f), (h,), (STEPS, b, s, h), (STEPS, b, s, h)]
    return Numbers(*(torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes))


def half(x: Tensor, weight: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
    """Of tokens that are all here, with weights that are whole."""
    normed = F.rms_norm(x, x.shape[-1:], weight, EPSILON)
    return x + F.gelu(normed @ up.t()) @ down.t() + bias


def run(function: Callable, group: Group, sizes: Sizes, seed: int) -> dict:
    """Two steps of `function(x, weight, up, down, bias, sizes, group)` with this rank's parts."""
    dense, n, rank = numbers(sizes, seed), group.size(), group.rank()
    tokens, units = cut(sizes.s, n), slice(*span(sizes.f, n, rank))
    parameters = [dense.weight, dense.up[units], dense.down[:, units], dense.bias]
    steps = []
    for x, dy in zip(dense.xs, dense.dys, strict=True):
        x, dy = (t.split(tokens, 1)[rank] for t in (x, dy))
        leaves = [t.clone().requires_grad_() for t in (x, *parameters)]
        step = _step(lambda leaves=leaves: function(*leaves, list(tokens), group), leaves, dy,
                     sizes.b * sizes.s * sizes.h)  # fmt: skip
        steps.append(step)
        if step["grads"] is None:
            break
        moved = zip(parameters, step["grads"][1:], strict=True)
        parameters = [p if g is None else p - RATE * g for p, g in moved]
    return {**steps[0], "steps": steps}


def _step(call: Callable[[], object], leaves: list[Tensor], dy: Tensor, phi: int) -> dict:
    before = [leaf.detach().clone() for leaf in leaves]
    with Watch() as memory:
        out, forward = bench.watched(call)
    wide = _alive(memory, phi * dy.element_size())
    report = {
        **bench.described(out),
        "out": None,
        "grads": None,
        "forward": forward,
        "backward": None,
        "wide": wide,
        "changed": not all(map(torch.equal, before, (leaf.detach() for leaf in leaves))),
    }
    if not isinstance(out, Tensor) or out.shape != dy.shape or out.dtype != dy.dtype:
        return report
    report["out"] = out.detach().clone()
    if out.requires_grad:
        _, report["backward"] = bench.watched(lambda: out.backward(dy))
        report["grads"] = [None if t.grad is None else t.grad.clone() for t in leaves]
    return report


def _alive(memory: Watch, least: int) -> int:
    """How many storages of `least` bytes or more are left. A backend's thread may hold the copy
    that it made for a message a moment longer, so more than one is looked at again."""
    for _ in range(PATIENCE):
        found = sum(one.nbytes() >= least for one in memory.made_and_alive())
        if found <= 1:
            break
        time.sleep(0.01)
    return found
