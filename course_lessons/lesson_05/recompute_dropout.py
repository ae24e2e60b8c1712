"""`recompute_dropout` of lesson 05: a block run again in the backward pass, with the same masks.

Two training steps are compared with the same steps without recomputation, bit by bit.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from course_classroom.judge import bench, general
from course_classroom.judge.answer import Answer
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.layers import PATIENCE
from course_classroom.judge.looking import THREE, TWO, fresh_seed
from course_classroom.judge.words import Page
from course_lib.collectives.call import Group
from course_lib.memory.lifetimes import StorageWatch
from course_lib.tensor_parallel.conjugates import copy, reduce

HIDDEN, RATE = 7, 0.3
SAYS = Page(__file__, "recompute_dropout")
Wrong = tuple[str, dict]  # an entry, "" if all is right, and the values for its words


class Block:
    """x + dropout(g(dropout(tanh(f(x) A)) B)), with records of its runs, masks and live tensors.
    Inner dropout draws from this rank's own generator, and final dropout from torch's default."""

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
        """Delete the records of all runs before a new step."""
        self.masks: list[tuple[Tensor, Tensor]] = []  # of each run: inside, and at the end
        self.inside = lambda: None  # the first run's inner result, while it is alive

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


def compare(function: Callable, group: Group, seed: int, shape: Sequence, dtype: str) -> list:
    """Run two training steps with the answer; compare them with steps that store activations."""
    case = (seed, group, (*shape, HIDDEN), getattr(torch, dtype))
    stored, _ = bench.watched(lambda: train(lambda block, x, private: block(x), *case))
    mine, _ = bench.watched(lambda: train(function, *case))
    return [mine] if isinstance(mine, tuple) else list(map(_wrong, mine, stored))


def train(
    function: Callable, seed: int, group: Group, shape: tuple, dtype: torch.dtype
) -> list[dict] | Wrong:
    """Run a step of SGD with two stacked blocks, and a step with both blocks side by side."""
    torch.manual_seed(seed)  # the shared stream, the same on every rank
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
            with StorageWatch() as memory:
                out = function(block, x, private)
            if out is None:
                return "nothing returned", {}
            if not (bench.plain(out) and (out.shape, out.dtype) == (x.shape, x.dtype)):
                return "wrong shape", {"kind": bench.kind(out)}
            if not out.requires_grad:
                return "no history", {}
            extra = max(extra, _kept(memory, x, out))
            outs.append(out)
        gc.collect()
        step = {
            "alive": any(block.inside() is not None for block in blocks) or extra > 0,
            "outs": [out.detach().clone() for out in outs],
            "drawn": _draw(private),
            "masks": [block.masks for block in blocks],
        }
        for out in outs[-1:] if stacked else outs:  # side by side: in the order of the forward
            (out * pull).sum().backward()
        step |= {"drawn later": _draw(private), "gradients": [v.grad for v in leaves]}
        steps.append(step)
        with torch.no_grad():
            for leaf in leaves:
                if leaf.grad is not None:
                    leaf -= 0.01 * leaf.grad
                    leaf.grad = None
    return steps


def twice(function: Callable, group: Group, seed: int) -> bool:
    """Call a block twice on the same x before a backward pass; compare with stored activations."""

    def gradients(run: Callable) -> list[Tensor]:
        torch.manual_seed(seed)
        private = torch.Generator().manual_seed(seed + group.rank())
        block = Block(seed, group, private, torch.float64)
        x = torch.rand(2, HIDDEN, dtype=torch.float64).requires_grad_()
        for out in [run(block, x, private) for _ in range(2)]:
            out.square().sum().backward()
        return [x.grad, *(w.grad for w in block.weights)]

    stored = gradients(lambda block, x, private: block(x))
    mine, _ = bench.watched(lambda: gradients(function))
    return all(map(torch.equal, mine, stored))


def _kept(memory: StorageWatch, x: Tensor, out: Tensor) -> int:
    """Count live tensors as large as x after a call, without its result, copies of x and states."""
    state, result = torch.get_rng_state().nbytes, out.untyped_storage()._cdata
    raw = x.detach().contiguous().flatten().view(torch.uint8)

    def counts(storage: torch.UntypedStorage) -> bool:
        if storage.nbytes() < x.nbytes or storage.nbytes() == state or storage._cdata == result:
            return False
        return not torch.equal(torch.empty(0, dtype=torch.uint8).set_(storage), raw)

    for turn in range(PATIENCE):
        found = sum(map(counts, memory.made_and_alive()))
        if not found or out.grad_fn is None:
            break
        if turn == 0:
            gc.collect()  # only once: the backend frees its tensors without it, and it is slow
        time.sleep(0.01)
    return found


def _draw(private: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the next numbers of the private stream and of the shared stream."""
    return torch.rand(3, generator=private), torch.rand(3)


def _wrong(mine: dict, stored: dict) -> Wrong:
    """Return the first error of a step; each look assumes that the earlier looks pass."""
    theirs = [masks[0] for masks in stored["masks"]]
    runs = [len(masks) for masks in mine["masks"]]
    first, second = (_same(masks[0], b) for masks, b in zip(mine["masks"], theirs, strict=True))
    last = [masks[-1] for masks in mine["masks"]]
    again = list(map(_same, last, theirs))
    inside, end = (all(each) for each in zip(*again, strict=True))
    exchanged = [any(_same(a, b)) for a, b in zip(last, theirs[::-1], strict=True)]
    moved = [a and b for a, b in zip(second, _same(mine["drawn"], stored["drawn"]), strict=True)]
    private, shared = _same(mine["drawn later"], stored["drawn later"])
    streams = ("`private`", "torch's own generator")
    which = [s for s, so in zip(streams, moved if all(first) else first, strict=True) if not so]
    missing = [grad is None for grad in mine["gradients"]]
    times = _times(mine["gradients"], stored["gradients"])
    holds = {
        "wrong mask in the forward pass": not all(first),
        "moved in the forward": not all(moved),
        "wrong forward result": not all(map(torch.equal, mine["outs"], stored["outs"])),
        "nothing recomputed": runs[-1] < 2,
        "x cut off": any(missing[:-4]),
        "activations still kept": mine["alive"],
        "run too often": max(runs) > 2,
        "one state for two blocks": exchanged[0] and (exchanged[1] or all(again[1])),
        "state taken too late": exchanged[0],
        "new masks": not (inside or end),
        "private stream forgotten": not inside,
        "shared stream forgotten": not end,
        "weights left out": any(missing),
        "rounded on the way": times == general.ROUNDED,
        "counted twice": times in (2.0, 3.0),
        "wrong gradients": times != 1.0,
        "private stream rewound": shared and not private,
        "shared stream rewound": not shared,
    }
    entry = next((entry for entry, so in holds.items() if so), "")
    return entry, {"which": " and ".join(which), "times": times, "runs": runs}


def _same(mine: Sequence[Tensor], stored: Sequence[Tensor]) -> list[bool]:
    return list(map(torch.equal, mine, stored))


def _times(mine: list[Tensor | None], stored: list[Tensor]) -> float | str:
    """Return 1.0 for bitwise equal gradients, k if one is k times as large, or a word."""
    pairs = [(a, b) for a, b in zip(mine, stored, strict=True) if a is not None]
    if all(torch.equal(a, b) for a, b in pairs):
        return 1.0
    for factor in (2.0, 3.0):
        if any(torch.allclose(a, factor * b, rtol=1e-6, atol=1e-9) for a, b in pairs):
            return factor
    narrow = all(torch.equal(a, b) or general.narrower(a, b) == ["float32"] for a, b in pairs)
    far = any(not torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in pairs)
    return general.ROUNDED if narrow and far else "other"


def judge_recompute(answer: Answer, judge: Judge) -> None:
    """Train on three ranks and on two ranks, and compare with stored activations."""
    judge.take(answer, __name__)
    seed = fresh_seed()
    for members, shape, dtype in ((THREE, (2, 5), "float64"), (TWO, (6,), "float32")):
        given, when = (seed, shape, dtype), on(members)
        reports = judge.trial(answer, compare, *given, members=members, when=when)
        for rank, steps in enumerate(reports):
            for step, (entry, about) in enumerate(steps):
                side = ", in step 2, with the two blocks side by side" if step else ""
                about["where"] = f"{when}, rank {rank}{side}"
                if step and entry in ("wrong gradients", "wrong forward result"):
                    raise SAYS("second step", text=SAYS(entry, **about).text)
                if entry:
                    raise SAYS(entry, **about)
    reports = judge.trial(answer, twice, seed, members=THREE, when=on(THREE))
    where = f"{on(THREE)}, with one block called twice on the same x"
    SAYS.refuse({"one state for two blocks": not all(reports)}, where=where)


RECOMPUTE = Exercise(judge=judge_recompute, **SAYS.about)
