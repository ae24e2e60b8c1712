"""What runs on the judge's ranks for `recompute_dropout`: two blocks, stored, and by the answer.

A block is cut over the ranks and drops out twice: inside, from this rank's own generator, and at
its end, from torch's. It notes each run, each mask, and what of a run is still alive. Lesson 05.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.tensor_parallel.conjugates import copy, reduce

BATCH, LENGTH, HIDDEN, RATE = 2, 5, 7, 0.3


class Block:
    """x + dropout(g(dropout(tanh(f(x) A)) B)), A by columns and B by rows, uneven."""

    def __init__(self, seed: int, group: dist.ProcessGroup, private: torch.Generator):
        made = torch.Generator().manual_seed(seed * 101 + group.rank())
        own = 3 + group.rank()
        self.a, self.b = (
            torch.randn(*shape, generator=made, dtype=torch.float64).requires_grad_()
            for shape in ((HIDDEN, own), (own, HIDDEN))
        )
        self.group, self.private = group, private
        self.head_masks: list[Tensor] = []
        self.end_masks: list[Tensor] = []
        self.inside: list[weakref.ref] = []  # of the first run

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.tanh(copy(x, self.group) @ self.a)  # (b, s, f/tp)
        drawn = torch.rand(y.shape, generator=self.private, dtype=torch.float64)
        self.head_masks.append(drawn >= RATE)
        y = y * (drawn >= RATE) / (1 - RATE)
        if len(self.head_masks) == 1:
            self.inside.append(weakref.ref(y))
        z = reduce(y @ self.b, self.group)  # (b, s, h)
        kept = F.dropout(torch.ones_like(z), RATE)
        self.end_masks.append(kept > 0)
        return x + z * kept

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        return self.a, self.b


def compare(function: Callable, seed: int, group: dist.ProcessGroup) -> dict:
    """Two training steps with everything stored, the same two by the answer, side by side."""
    stored, _ = bench.watched(lambda: train(lambda block, x, private: block(x), seed, group))
    mine, facts = bench.watched(lambda: train(function, seed, group))
    if mine["problem"]:
        return {"problem": mine["problem"], "kind": mine["kind"]}
    first, second = stored["masks"][0], stored["masks"][1]
    told = mine["masks"][0]
    again = [masks[-1] for masks in told]  # of heads, at the end; as they were in the last run
    return {
        "problem": "",
        "kind": mine["kind"],
        "ops": facts["ops"],
        "runs": mine["runs"],
        "alive": mine["alive"],
        "forward": torch.equal(mine["out"], stored["out"]),
        "first masks": same([masks[0] for masks in told], [masks[0] for masks in first]),
        "next block": same([masks[0] for masks in mine["masks"][1]], [m[0] for m in second]),
        "after forward": same(mine["next"], stored["next"]),
        "masks again": same(again, [masks[0] for masks in first]),
        "next block's masks": same(again, [masks[0] for masks in second]),
        "missing": mine["missing"],
        "ratio": ratio(mine["gradients"], stored["gradients"]),
        "after backward": same(mine["last"], stored["last"]),
        "after two steps": mine["losses"] == stored["losses"],
    }


def train(function: Callable, seed: int, group: dist.ProcessGroup) -> dict:
    """Two blocks one after the other, two steps of SGD, and a look at everything on the way."""
    torch.manual_seed(seed)  # the shared stream: the same on every rank
    private = torch.Generator().manual_seed(seed * 7 + 1 + group.rank())
    blocks = [Block(seed + i, group, private) for i in range(2)]
    made = torch.Generator().manual_seed(seed + 5)
    x = torch.randn(BATCH, LENGTH, HIDDEN, generator=made, dtype=torch.float64)
    pull = torch.randn(BATCH, LENGTH, HIDDEN, generator=made, dtype=torch.float64)
    x.requires_grad_()
    leaves = [x, *(w for block in blocks for w in block.weights)]
    told, losses = {"problem": ""}, []
    for step in range(2):
        out = x
        for block in blocks:
            out = function(block, out, private)
            told["kind"] = type(out).__name__
            if not isinstance(out, Tensor) or out.shape != x.shape:
                return {**told, "problem": "no result"}
        if step == 0:
            gc.collect()
            told["alive"] = any(ref() is not None for block in blocks for ref in block.inside)
            told["out"] = out.detach().clone()
            told["next"] = _draw(private)
        loss = (out * pull).sum()
        losses.append(float(loss))
        if not out.requires_grad:
            return {**told, "problem": "no history"}
        loss.backward()
        if step == 0:
            told["last"] = _draw(private)
            told["runs"] = [len(block.head_masks) for block in blocks]
            told["masks"] = [(list(b.head_masks), list(b.end_masks)) for b in blocks]
            told["missing"] = ["x" if leaf is x else "w" for leaf in leaves if leaf.grad is None]
            told["gradients"] = [None if v.grad is None else v.grad.clone() for v in leaves]
        with torch.no_grad():
            for leaf in leaves:
                if leaf.grad is not None:
                    leaf -= 0.01 * leaf.grad
                    leaf.grad = None
    return {**told, "losses": losses}


def same(mine: Sequence[Tensor], stored: Sequence[Tensor]) -> list[bool]:
    return [torch.equal(a, b) for a, b in zip(mine, stored, strict=True)]


def ratio(mine: list[Tensor | None], stored: list[Tensor]) -> float:
    """1.0 where all gradients are equal bit by bit; k where they are k times as large; else 0."""
    pairs = [(a, b) for a, b in zip(mine, stored, strict=True) if a is not None]
    if all(torch.equal(a, b) for a, b in pairs):
        return 1.0
    for factor in (2.0, 3.0):
        if any(torch.allclose(a, factor * b, rtol=1e-12, atol=1e-12) for a, b in pairs):
            return factor
    return 0.0


def _draw(private: torch.Generator) -> tuple[Tensor, Tensor]:
    """The next numbers of the shared stream and of the private one."""
    return torch.rand(3), torch.rand(3, generator=private)
