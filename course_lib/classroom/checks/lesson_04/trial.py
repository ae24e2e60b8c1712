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
from course_lib.classroom.checks.lesson_03 import kept
from course_lib.classroom.checks.lesson_03.trial import alone_in_a_group
from course_lib.collectives.call import Group
from course_lib.layout import span
from course_lib.ledger import ledger
from course_lib.tensor_parallel.conjugates import copy, reduce

STEPS, RATE = 2, 0.01
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


def five(function: Callable, group: Group, sizes: list[int], seed: int) -> dict:
    """Call the answer with this rank's shards, in two steps of one layer: the optimizer moves its
    parameters where they are, and the second step has fewer sequences."""
    sizes = Sizes(*sizes)
    dense, parameters = numbers(sizes, seed), shards(sizes, seed, group)
    steps = []
    for x, dy in zip(batches(dense.xs), batches(dense.dys), strict=True):
        leaves = [x.clone().requires_grad_(), *parameters]
        step = _step(lambda leaves=leaves: function(*leaves, group), leaves, dy)
        steps.append(step)
        if step["grads"] is None:
            break
        with torch.no_grad():
            for p in parameters:
                p -= 0 if p.grad is None else RATE * p.grad
                p.grad = None
    return {**steps[0], "steps": steps}


def batches(of_steps: Tensor) -> list[Tensor]:
    """What goes in at each step: one sequence fewer every time."""
    return [one[: len(one) - step] for step, one in enumerate(of_steps)]


def shards(sizes: Sizes, seed: int, group: Group, dtype: torch.dtype = torch.float64) -> list:
    """This rank's gate, up, down and bias, as leaves."""
    dense, own = numbers(sizes, seed), slice(*span(sizes.f, group.size(), group.rank()))
    mine = [dense.gate[own], dense.up[own], dense.down[:, own], dense.bias]
    return [t.detach().to(dtype, copy=True).requires_grad_() for t in mine]


def five_at_once(function: Callable, group: Group, uses: list[tuple], seed: int) -> list[dict]:
    """Layers that are alive together: sizes, dtype, and whether its group is this rank alone. All
    forwards first, then all backwards."""
    own, made = alone_in_a_group(), []
    for sizes, dtype, alone in uses:
        sizes, dtype, where = Sizes(*sizes), getattr(torch, dtype), own if alone else group
        dense = numbers(sizes, seed)
        x = dense.xs[0].to(dtype, copy=True).requires_grad_()
        leaves = [x, *shards(sizes, seed, where, dtype)]
        out, _ = bench.watched(lambda leaves=leaves, at=where: function(*leaves, at))
        made.append((out, leaves, dense.dys[0].to(dtype)))
    found = []
    for out, leaves, dy in made:
        report = {"dtype": str(out.dtype).removeprefix("torch."), "out": out.detach().double()}
        bench.watched(lambda out=out, dy=dy: out.backward(dy.to(out.dtype)))
        grads = [None if t.grad is None else t.grad.double() for t in leaves]
        found.append({**report, "grads": grads})
    bench.end(own)
    return found


def _step(call: Callable[[], object], leaves: list[Tensor], dy: Tensor) -> dict:
    """One forward and, where something came back that leads back, one backward."""
    before = [leaf.detach().clone() for leaf in leaves]
    with ledger() as book:
        out, forward = bench.watched(call)
    report = {
        **bench.described(out),
        "out": None,
        "grads": None,
        "forward": forward,
        "sent": [(record.op, record.elements) for record in book.records],
        "backward": None,
        "changed": not all(map(torch.equal, before, (leaf.detach() for leaf in leaves))),
    }
    if not bench.plain(out) or out.shape != dy.shape or out.dtype != dy.dtype:
        return report
    report["out"] = out.detach().clone()
    if out.requires_grad:
        _, report["backward"] = bench.watched(lambda: out.backward(dy))
        report["grads"] = [None if t.grad is None else t.grad.clone() for t in leaves]
        now = (leaf.detach() for leaf in leaves)
        report["changed"] = report["changed"] or not all(map(torch.equal, before, now))
    return report


def fuse(function: Callable, group: Group, sizes: list[int], seed: int, biases: bool) -> dict:
    """Call `function(gate, up, group)` for the weights, then for others and for float32 ones; with
    `biases` for those instead, and train."""
    sizes = Sizes(*sizes)
    dense = numbers(sizes, seed)
    weight, report = _fused(function, dense.gate, dense.up, group, keeping=not biases)
    if not biases:
        before = report["out"]
        others = [wide(numbers(sizes, seed + 1)), [t.float() for t in (dense.gate, dense.up)]]
        report["others"] = [_fused(function, *other, group)[1] for other in others]
        report["still"] = before is None or torch.equal(weight.detach(), before)
        return report
    bias, report = _fused(function, dense.gate_bias, dense.up_bias, group)
    start, stop = span(sizes.f, group.size(), group.rank())
    fits = isinstance(weight, Tensor) and weight.shape == (2 * (stop - start), sizes.h)
    if fits and isinstance(bias, Tensor) and bias.shape == (2 * (stop - start),):
        report["trained"] = trained(weight, bias, sizes, seed, group)
    return report


def wide(dense: Numbers) -> list[Tensor]:
    """A gate and an up of values far apart: what is computed with them, and not copied, rounds."""
    powers = torch.linspace(-200, 200, dense.gate.shape[1], dtype=torch.float64)
    return [t * 10.0**powers for t in (dense.gate, dense.up)]


def _fused(
    function: Callable, gate: Tensor, up: Tensor, group: Group, keeping: bool = False
) -> tuple[object, dict]:
    """What came back, and a description of it; with `keeping` also what stays alive besides."""
    given = [gate.clone(), up.clone()]
    out, facts = bench.watched(lambda: function(*given, group))
    changed = not all(map(torch.equal, given, (gate, up)))
    given.clear()
    parts = list(out) if isinstance(out, (list, tuple)) else []
    report = {
        **facts,
        **bench.described(out),
        "several": bool(parts) and all(isinstance(part, Tensor) for part in parts),
        "changed": changed,
        "out": None,
        "beside": 0,
        "kept": 0,
        "trained": None,
    }
    if bench.plain(out):
        mine = out.detach()
        report["beside"] = mine.untyped_storage().nbytes() // mine.element_size() - mine.numel()
        # Nobody has more than the whole to give: what is larger is not looked at.
        report["out"] = mine.clone() if mine.numel() <= 2 * gate.numel() else None
        if keeping:
            (_, report["kept"]), _ = bench.watched(
                lambda: kept.call(function, (t.clone() for t in (gate, up)), group)
            )
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
