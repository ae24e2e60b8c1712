"""What runs on the judge's ranks for `recompute_dropout`: two blocks, stored, and by the answer.

A block is cut over the ranks and drops out twice: inside, from this rank's own generator, and at
its end, from torch's. It notes each run, each mask, and what of a run is still alive. In the first
step the blocks follow each other, in the second they stand side by side. Lesson 05.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.memory.watch import Watch
from course_lib.tensor_parallel.conjugates import copy, reduce

HIDDEN, RATE = 7, 0.3
PATIENCE = 20  # times 10 ms: a backend's thread may hold a message's copy a moment longer
Masks = tuple[list[Tensor], list[Tensor]]  # of each run: inside, and at the end


class Block:
    """x + dropout(g(dropout(tanh(f(x) A)) B)), A by columns and B by rows, uneven."""

    def __init__(
        self, seed: int, group: dist.ProcessGroup, private: torch.Generator, dtype: torch.dtype
    ):
        made = torch.Generator().manual_seed(seed * 101 + group.rank())
        own = 3 + group.rank()
        self.a, self.b = (
            torch.randn(*shape, generator=made, dtype=dtype).requires_grad_()
            for shape in ((HIDDEN, own), (own, HIDDEN))
        )
        self.group, self.private = group, private
        self.begin()

    def begin(self) -> None:
        """A new step: no run yet."""
        self.head_masks: list[Tensor] = []
        self.end_masks: list[Tensor] = []
        self.inside: list[weakref.ref] = []  # of the first run

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.tanh(copy(x, self.group) @ self.a)  # (…, f/tp)
        drawn = torch.rand(y.shape, generator=self.private, dtype=y.dtype)
        self.head_masks.append(drawn >= RATE)
        y = y * (drawn >= RATE) / (1 - RATE)
        if len(self.head_masks) == 1:
            self.inside.append(weakref.ref(y))
        z = reduce(y @ self.b, self.group)  # (…, h)
        kept = F.dropout(torch.ones_like(z), RATE)
        self.end_masks.append(kept > 0)
        return x + z * kept

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        return self.a, self.b

    @property
    def masks(self) -> Masks:
        return list(self.head_masks), list(self.end_masks)


def compare(
    function: Callable, group: dist.ProcessGroup, seed: int, shape: Sequence[int], dtype: str
) -> dict:
    """Two training steps with everything stored, the same two by the answer, side by side."""
    kind = getattr(torch, dtype)
    case = (seed, group, (*shape, HIDDEN), kind)
    stored, _ = bench.watched(lambda: train(lambda block, x, private: block(x), *case))
    mine, facts = bench.watched(lambda: train(function, *case))
    if mine["problem"]:
        return {"problem": mine["problem"], "kind": mine["kind"]}
    steps = [_beside(a, b) for a, b in zip(mine["steps"], stored["steps"], strict=True)]
    return {"problem": "", "kind": mine["kind"], "ops": facts["ops"], "steps": steps}


def _beside(mine: dict, stored: dict) -> dict:
    """One step by the answer, held against the stored one."""
    first = [[masks[0] for masks in block] for block in stored["masks"]]
    again = [[masks[-1] for masks in block] for block in mine["masks"]]
    return {
        **{key: mine[key] for key in ("runs", "alive", "missing")},
        "forward": all(map(torch.equal, mine["outs"], stored["outs"])),
        "first masks": [
            same([masks[0] for masks in block], right)
            for block, right in zip(mine["masks"], first, strict=True)
        ],
        "after forward": same(mine["next"], stored["next"]),
        "masks again": [same(a, b) for a, b in zip(again, first, strict=True)],
        "another block's": [any(same(a, b)) for a, b in zip(again, first[::-1], strict=True)],
        "ratio": ratio(mine["gradients"], stored["gradients"]),
        "after backward": same(mine["last"], stored["last"]),
    }


def train(
    function: Callable, seed: int, group: dist.ProcessGroup, shape: tuple, dtype: torch.dtype
) -> dict:
    """Two blocks, one after the other and then side by side, a step of SGD each."""
    torch.manual_seed(seed)  # the shared stream: the same on every rank
    private = torch.Generator().manual_seed(seed * 7 + 1 + group.rank())
    blocks = [Block(seed + i, group, private, dtype) for i in range(2)]
    made = torch.Generator().manual_seed(seed + 5)
    xs = [torch.randn(shape, generator=made, dtype=dtype).requires_grad_() for _ in range(2)]
    pull = torch.randn(shape, generator=made, dtype=dtype)
    told: dict = {"problem": "", "steps": []}
    for stacked in (True, False):
        outs, extra = [], 0
        leaves = [*xs[: 1 if stacked else 2], *(w for block in blocks for w in block.weights)]
        for block, x in zip(blocks, xs, strict=True):
            block.begin()
            x = outs[-1] if stacked and outs else x
            with Watch() as memory:
                out = function(block, x, private)
            told["kind"] = type(out).__name__
            if not isinstance(out, Tensor) or out.shape != x.shape or out.dtype != x.dtype:
                return {**told, "problem": "no result"}
            if out.is_sparse or out.is_meta:
                return {**told, "problem": "no result"}
            if not out.requires_grad:
                return {**told, "problem": "no history"}
            extra = max(extra, _kept(memory, x, out))
            outs.append(out)
        gc.collect()
        inside = any(ref() is not None for block in blocks for ref in block.inside)
        step = {"alive": inside or extra > 0, "outs": [out.detach().clone() for out in outs]}
        step["next"] = _draw(private)
        for out in outs[-1:] if stacked else outs:  # side by side: in the order of the forward
            (out * pull).sum().backward()
        step["last"] = _draw(private)
        step["runs"] = [len(block.head_masks) for block in blocks]
        step["masks"] = [block.masks for block in blocks]
        step["missing"] = ["x" if v.shape == shape else "w" for v in leaves if v.grad is None]
        step["gradients"] = [None if v.grad is None else v.grad.clone() for v in leaves]
        told["steps"].append(step)
        with torch.no_grad():
            for leaf in leaves:
                if leaf.grad is not None:
                    leaf -= 0.01 * leaf.grad
                    leaf.grad = None
    return told


def _kept(memory: Watch, x: Tensor, out: Tensor) -> int:
    """How many tensors as large as x a call has left, beside its result, copies of x and states."""
    state, result = torch.get_rng_state().nbytes, out.untyped_storage()._cdata
    raw = x.detach().contiguous().flatten().view(torch.uint8)

    def counts(storage: torch.UntypedStorage) -> bool:
        if storage.nbytes() < x.nbytes or storage.nbytes() == state or storage._cdata == result:
            return False
        return not torch.equal(torch.empty(0, dtype=torch.uint8).set_(storage), raw)

    for _ in range(PATIENCE):
        found = sum(map(counts, memory.made_and_alive()))
        if not found or out.grad_fn is None:
            break
        time.sleep(0.01)
        gc.collect()
    return found


def same(mine: Sequence[Tensor], stored: Sequence[Tensor]) -> list[bool]:
    return [torch.equal(a, b) for a, b in zip(mine, stored, strict=True)]


def ratio(mine: list[Tensor | None], stored: list[Tensor]) -> float:
    """1.0 where all gradients are equal bit by bit; k where they are k times as large; else 0."""
    pairs = [(a, b) for a, b in zip(mine, stored, strict=True) if a is not None]
    if all(torch.equal(a, b) for a, b in pairs):
        return 1.0
    for factor in (2.0, 3.0):
        if any(torch.allclose(a, factor * b, rtol=1e-6, atol=1e-9) for a, b in pairs):
            return factor
    return 0.0


def _draw(private: torch.Generator) -> tuple[Tensor, Tensor]:
    """The next numbers of the shared stream and of the private one."""
    return torch.rand(3), torch.rand(3, generator=private)
