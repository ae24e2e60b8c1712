"""What runs on the judge's ranks for `recompute_dropout`: two blocks, stored, and by the answer.

In the first step the blocks follow each other, in the second they stand side by side. Lesson 05.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks import bench, general
from course_lib.collectives.call import Group
from course_lib.memory.watch import Watch
from course_lib.tensor_parallel.conjugates import copy, reduce

HIDDEN, RATE = 7, 0.3
PATIENCE = 20  # times 10 ms: a backend's thread may hold a message's copy a moment longer


class Block:
    """x + dropout(g(dropout(tanh(f(x) A)) B)), A by columns and B by rows, uneven.

    It drops out inside, from this rank's own generator, and at its end, from torch's; it notes each
    run, each mask, and what of the first run is still alive.
    """

    def __init__(self, seed: int, group: Group, private: torch.Generator, dtype: torch.dtype):
        made = torch.Generator().manual_seed(seed * 101 + group.rank())
        own = 3 + group.rank()
        self.weights = [
            torch.randn(*shape, generator=made, dtype=dtype).requires_grad_()
            for shape in ((HIDDEN, own), (own, HIDDEN))
        ]
        self.group, self.private = group, private
        self.begin()

    def begin(self) -> None:
        """Forget all runs: a new step."""
        self.masks: list[tuple[Tensor, Tensor]] = []  # of each run: inside, and at the end
        self.inside = lambda: None  # what the first run computed there, while it is alive

    def __call__(self, x: Tensor) -> Tensor:
        a, b = self.weights
        y = torch.tanh(copy(x, self.group) @ a)  # (…, f/tp)
        drawn = torch.rand(y.shape, generator=self.private, dtype=y.dtype)
        y = y * (drawn >= RATE) / (1 - RATE)
        if not self.masks:
            self.inside = weakref.ref(y)
        z = reduce(y @ b, self.group)  # (…, h)
        kept = F.dropout(torch.ones_like(z), RATE)
        self.masks.append((drawn >= RATE, kept > 0))
        return x + z * kept


def compare(function: Callable, group: Group, seed: int, shape: Sequence[int], dtype: str) -> dict:
    """Two training steps with everything stored, the same two by the answer, side by side."""
    case = (seed, group, (*shape, HIDDEN), getattr(torch, dtype))
    stored, _ = bench.watched(lambda: train(lambda block, x, private: block(x), *case))
    mine, _ = bench.watched(lambda: train(function, *case))
    if isinstance(mine, str):
        return {"problem": mine}
    return {"problem": "", "steps": list(map(_beside, mine, stored))}


def train(
    function: Callable, seed: int, group: Group, shape: tuple, dtype: torch.dtype
) -> list[dict] | str:
    """Two blocks, one after the other and then side by side, a step of SGD each; what each step
    was, or what came back that is no result."""
    torch.manual_seed(seed)  # the shared stream: the same on every rank
    private = torch.Generator().manual_seed(seed * 7 + 1 + group.rank())
    blocks = [Block(seed + i, group, private, dtype) for i in range(2)]
    made = torch.Generator().manual_seed(seed + 5)
    xs = [torch.randn(shape, generator=made, dtype=dtype).requires_grad_() for _ in range(2)]
    pull, steps = torch.randn(shape, generator=made, dtype=dtype), []
    for stacked in (True, False):
        outs, extra = [], 0
        leaves = [*xs[: 1 if stacked else 2], *(w for block in blocks for w in block.weights)]
        for block, x in zip(blocks, xs, strict=True):
            block.begin()
            x = outs[-1] if stacked and outs else x
            with Watch() as memory:
                out = function(block, x, private)
            if not (bench.plain(out) and out.shape == x.shape and out.dtype == x.dtype):
                return bench.kind(out)
            if not out.requires_grad:
                return "no history"
            extra = max(extra, _kept(memory, x, out))
            outs.append(out)
        gc.collect()
        alive = any(block.inside() is not None for block in blocks) or extra > 0
        after_forward = _draw(private)
        for out in outs[-1:] if stacked else outs:  # side by side: in the order of the forward
            (out * pull).sum().backward()
        steps.append(
            {
                "alive": alive,
                "outs": [out.detach().clone() for out in outs],
                "after forward": after_forward,
                "after backward": _draw(private),
                "masks": [block.masks for block in blocks],
                "missing": ["x" if v.shape == shape else "w" for v in leaves if v.grad is None],
                "gradients": [v.grad for v in leaves],
            }
        )
        with torch.no_grad():
            for leaf in leaves:
                if leaf.grad is not None:
                    leaf -= 0.01 * leaf.grad
                    leaf.grad = None
    return steps


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


def _draw(private: torch.Generator) -> tuple[Tensor, Tensor]:
    """The next numbers of the shared stream and of the private one."""
    return torch.rand(3), torch.rand(3, generator=private)


def _beside(mine: dict, stored: dict) -> dict:
    """One step by the answer, held against the stored one."""
    first = [masks[0] for masks in stored["masks"]]
    again = [masks[-1] for masks in mine["masks"]]
    return {
        **{key: mine[key] for key in ("alive", "missing")},
        "runs": [len(masks) for masks in mine["masks"]],
        "forward": all(map(torch.equal, mine["outs"], stored["outs"])),
        "first masks": [_same(masks[0], b) for masks, b in zip(mine["masks"], first, strict=True)],
        "masks again": list(map(_same, again, first)),
        "another block's": [any(_same(a, b)) for a, b in zip(again, first[::-1], strict=True)],
        "times": _times(mine["gradients"], stored["gradients"]),
        **{at: _same(mine[at], stored[at]) for at in ("after forward", "after backward")},
    }


def _same(mine: Sequence[Tensor], stored: Sequence[Tensor]) -> list[bool]:
    return list(map(torch.equal, mine, stored))


def _times(mine: list[Tensor | None], stored: list[Tensor]) -> float | str:
    """1.0 where all gradients are equal bit by bit, k where some is k times as large, or a word."""
    pairs = [(a, b) for a, b in zip(mine, stored, strict=True) if a is not None]
    if all(torch.equal(a, b) for a, b in pairs):
        return 1.0
    for factor in (2.0, 3.0):
        if any(torch.allclose(a, factor * b, rtol=1e-6, atol=1e-9) for a, b in pairs):
            return factor
    narrow = all(torch.equal(a, b) or general.narrower(a, b) == ["float32"] for a, b in pairs)
    far = any(not torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in pairs)
    return general.ROUNDED if narrow and far else "other"
