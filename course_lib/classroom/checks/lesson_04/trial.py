"""What runs on the judge's ranks round the two functions of lesson 04, and what it reports.

Both are tried inside a whole SwiGLU MLP: forward, backward and two steps of SGD, with a loss that
is the same on every rank. The judge makes the same numbers and is the dense reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.collectives.call import Group
from course_lib.layout import span
from course_lib.ledger import ledger
from course_lib.tensor_parallel.conjugates import copy, reduce

STEPS, RATE = 2, 0.1
PARAMETERS = ("gate", "up", "down", "bias")


class Sizes(NamedTuple):
    """Of one trial: batch, sequence, hidden and inner; no two of them alike."""

    b: int
    s: int
    h: int
    f: int


class Numbers(NamedTuple):
    """The dense layer as torch.nn.Linear keeps it, and what goes in at each step."""

    gate: Tensor  # (f, h)
    up: Tensor  # (f, h)
    down: Tensor  # (h, f)
    bias: Tensor  # (h,)
    gate_bias: Tensor  # (f,)
    up_bias: Tensor  # (f,)
    xs: Tensor  # (step, b, s, h)
    dys: Tensor  # (step, b, s, h), the gradient that arrives at the output


def numbers(sizes: Sizes, seed: int) -> Numbers:
    """The same on every rank, and on the judge."""
    made = torch.Generator().manual_seed(seed)
    b, s, h, f = sizes
    shapes = [(f, h), (f, h), (h, f), (h,), (f,), (f,), (STEPS, b, s, h), (STEPS, b, s, h)]
    return Numbers(*(torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes))


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
    return F.silu(x @ gate.t()) * (x @ up.t()) @ down.t() + bias


def five(function: Callable, sizes: Sizes, seed: int, group: Group) -> dict:
    """Call `function(x, gate, up, down, bias, group)` with this rank's shards, in two steps."""
    dense, own = numbers(sizes, seed), slice(*span(sizes.f, group.size(), group.rank()))
    parameters = [dense.gate[own], dense.up[own], dense.down[:, own], dense.bias]
    steps = []
    for x, dy in zip(dense.xs, dense.dys, strict=True):
        leaves = [t.clone().requires_grad_() for t in (x, *parameters)]
        step = _step(lambda leaves=leaves: function(*leaves, group), leaves, dy)
        steps.append(step)
        if step["grads"] is None:
            break
        moved = zip(parameters, step["grads"][1:], strict=True)
        parameters = [p if g is None else p - RATE * g for p, g in moved]
    return {**steps[0], "steps": steps}


def _step(call: Callable[[], object], leaves: list[Tensor], dy: Tensor) -> dict:
    """One forward and, where something came back that leads back, one backward."""
    before = [leaf.detach().clone() for leaf in leaves]
    with ledger() as book:
        out, forward = bench.watched(call)
    report = {
        "kind": type(out).__name__,
        "out": None,
        "grads": None,
        "forward": forward,
        "sent": [(record.op, record.elements) for record in book.records],
        "backward": None,
        "changed": not all(map(torch.equal, before, (leaf.detach() for leaf in leaves))),
    }
    if not isinstance(out, Tensor):
        return report
    report["shape"], report["dtype"] = list(out.shape), str(out.dtype).removeprefix("torch.")
    if out.shape != dy.shape or out.dtype != dy.dtype:
        return report
    report["out"] = out.detach().clone()
    if out.requires_grad:
        _, report["backward"] = bench.watched(lambda: out.backward(dy))
        report["grads"] = [None if t.grad is None else t.grad.clone() for t in leaves]
    return report


def fuse(function: Callable, sizes: Sizes, seed: int, biases: bool, group: Group) -> dict:
    """Call `function(gate, up, group)` for the weights; with `biases` for those too, and train."""
    dense = numbers(sizes, seed)
    weight, report = _fused(function, dense.gate, dense.up, group)
    if not biases:
        return report
    bias, report = _fused(function, dense.gate_bias, dense.up_bias, group)
    start, stop = span(sizes.f, group.size(), group.rank())
    fits = isinstance(weight, Tensor) and weight.shape == (2 * (stop - start), sizes.h)
    if fits and isinstance(bias, Tensor) and bias.shape == (2 * (stop - start),):
        report["trained"] = trained(weight, bias, sizes, seed, group)
    return report


def _fused(function: Callable, gate: Tensor, up: Tensor, group: Group) -> tuple[object, dict]:
    """What came back, and a description of it."""
    given = (gate.clone(), up.clone())
    out, facts = bench.watched(lambda: function(*given, group))
    parts = list(out) if isinstance(out, (list, tuple)) else []
    report = {
        **facts,
        "kind": type(out).__name__,
        "several": bool(parts) and all(isinstance(part, Tensor) for part in parts),
        "changed": not all(map(torch.equal, given, (gate, up))),
        "shape": None,
        "out": None,
        "trained": None,
    }
    if isinstance(out, Tensor):
        kept = out.detach()
        report["shape"], report["dtype"] = list(kept.shape), str(kept.dtype)[len("torch.") :]
        report["beside"] = kept.untyped_storage().nbytes() // kept.element_size() - kept.numel()
        # Nobody has more than the whole to give: what is larger is not looked at.
        report["out"] = kept.clone() if kept.numel() <= 2 * gate.numel() else None
    return out, report


def trained(weight: Tensor, bias: Tensor, sizes: Sizes, seed: int, group: Group) -> list[Tensor]:
    """Two steps of SGD with this rank's fused weight and bias: what came out, what came back."""
    dense, own = numbers(sizes, seed), slice(*span(sizes.f, group.size(), group.rank()))
    weight, bias, down = (t.detach().clone() for t in (weight, bias, dense.down[:, own]))
    seen: list[Tensor] = []
    for x, dy in zip(dense.xs, dense.dys, strict=True):
        leaves = [t.detach().requires_grad_() for t in (x.clone(), weight, bias, down)]
        wide = F.linear(copy(leaves[0], group), leaves[1], leaves[2])  # (b, s, 2·f/tp)
        gate, up = wide.chunk(2, dim=-1)
        y = reduce((F.silu(gate) * up) @ leaves[3].t(), group)
        y.backward(dy)
        seen += [y.detach(), leaves[0].grad]
        weight, bias, down = (t.detach() - RATE * t.grad for t in leaves[1:])
    return [*seen, weight, bias, down]
