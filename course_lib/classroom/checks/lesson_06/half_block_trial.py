"""What runs on the judge's ranks for `sequence_mlp`: two steps of training of half a block.

Under a ledger in both directions; between them the meter says how many tensors of all tokens, as
wide as x, the answer has left alive. The second step has a token more, the same parameters, and
another call between its forward and its backward. Lesson 06.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_06.pay_trial import agreed
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
    xs: list[Tensor]  # of each step: (b, tokens, h)
    dys: list[Tensor]  # the same


def tokens_of(s: int, n: int) -> list[int]:
    """How many each rank has: not as `cut` has it, where they differ, and no rank without."""
    return cut(s, n)[::-1]


def numbers(sizes: Sizes, seed: int) -> Numbers:
    """The same on every rank, and on the judge."""
    made = torch.Generator().manual_seed(seed)
    b, s, h, f = sizes

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64)

    xs, dys = ([some(b, s + step, h) for step in range(STEPS)] for _ in range(2))
    for x in xs:
        x[:, 0] *= 0.01  # so small a token that the norm's 1e-5 is seen
    return Numbers(some(h), some(f, h), some(h, f), some(h), xs, dys)


def half(x: Tensor, weight: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
    """Of tokens that are all here, with weights that are whole."""
    normed = F.rms_norm(x, x.shape[-1:], weight, EPSILON)
    return x + F.gelu(normed @ up.t()) @ down.t() + bias


def run(function: Callable, group: Group, sizes: Sizes, seed: int) -> dict:
    """Two steps of `function(x, weight, up, down, bias, sizes, group)` with this rank's parts."""
    dense, n, rank = numbers(sizes, seed), group.size(), group.rank()
    units = slice(*span(sizes.f, n, rank))
    parts = [dense.weight, dense.up[units], dense.down[:, units], dense.bias]
    parameters = [p.clone().requires_grad_() for p in parts]  # the same for all steps
    steps: list[dict] = []
    for number, (x, dy) in enumerate(zip(dense.xs, dense.dys, strict=True)):
        phi, tokens = x.numel(), tokens_of(x.shape[1], n)
        x, dy = (t.split(tokens, 1)[rank].clone() for t in (x, dy))

        def call(leaves: list[Tensor], own: list[int]) -> object:
            return function(*leaves, own, group)

        leaves = [x.requires_grad_(), *parameters]
        steps.append(_step(call, group, leaves, tokens, dy, phi, number > 0))
        if steps[-1]["grads"] is None:
            break
        with torch.no_grad():
            for p in parameters:
                if p.grad is not None:
                    p -= RATE * p.grad
                    p.grad = None
    return {**steps[0], "steps": steps}


def _step(
    call: Callable,
    group: Group,
    leaves: list[Tensor],
    tokens: list[int],
    dy: Tensor,
    phi: int,
    twice: bool,
) -> dict:
    """One step; with `twice` another call is alive when its backward begins."""
    before, own = [leaf.detach().clone() for leaf in leaves], list(tokens)
    with Watch() as memory:
        out, forward = bench.watched(lambda: call(leaves, own))
    wide = _alive(memory, phi * dy.element_size())
    report = {
        **bench.described(out),
        "out": None,
        "grads": None,
        "forward": forward,
        "backward": None,
        "wide": wide,
        "changed": own != tokens
        or not all(map(torch.equal, before, (leaf.detach() for leaf in leaves))),
    }
    if twice:
        others = [(2 * leaf.detach()).requires_grad_() for leaf in leaves]
        other, _ = bench.watched(lambda: call(others, list(tokens)))
        alike = isinstance(other, Tensor) and other.shape == dy.shape
        report["other"] = other.detach().clone() if alike else None
    fits = isinstance(out, Tensor) and out.shape == dy.shape and out.dtype == dy.dtype
    if fits and not (out.is_sparse or out.is_meta):
        report["out"] = out.detach().clone()
    if agreed(report["out"] is not None and out.requires_grad, group):
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
