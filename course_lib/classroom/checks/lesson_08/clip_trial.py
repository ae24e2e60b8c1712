"""What runs on the judge's ranks for `clip_as_one`: a cut GPT that is trained with clipping.

Beside it the dense model is trained with torch's clipping, and next to the right norm stand the
numbers that known wrong ideas lead to. Lesson 08.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_08 import model
from course_lib.collectives import all_gather, all_reduce
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.parallelize import replicated

# most, as a part of the norm: clipped hard, not clipped at all, clipped a little
PARTS = (0.2, 1.05, 0.95)
TIED = ("tokens.weight", "head.weight")


def train(function: Callable, group: dist.ProcessGroup, seed: int) -> list[dict]:
    """Three steps; what the answer gave in each."""
    config = model.GPT2.changed(layers=1, inner=4)  # on three ranks one has no row of `up`
    whole = model.dense(config, seed)
    mine = model.cut_over(copy.deepcopy(whole), group)
    named = dict(mine.named_parameters(remove_duplicate=False))  # a tied weight goes by two names
    copies, steps = {id(p) for _, p in replicated(mine)}, []
    cut = {name for name, p in named.items() if id(p) not in copies}
    for k, part in enumerate(PARTS):
        ids, targets = model.tokens(config, seed + 7 * k)
        mine.zero_grad()
        whole.zero_grad()
        F.cross_entropy(whole(ids).flatten(0, 1), targets.flatten()).backward()
        cross_entropy(mine(ids), targets, group, vocabulary=config.vocabulary).backward()
        want = float(nn.utils.get_total_norm([p.grad for p in whole.parameters()]))
        nn.utils.clip_grad_norm_(whole.parameters(), part * want)
        told = _tried(
            function, {name: p.grad for name, p in named.items()}, cut, group, part * want
        )
        steps.append(told | {"want": want})
        with torch.no_grad():
            for p in (*whole.parameters(), *mine.parameters()):
                p -= 0.05 * p.grad
    return steps


def alone(function: Callable, group: dist.ProcessGroup, seed: int) -> list[dict]:
    """Gradients of no model: of 0 to 3 dims, in float64 and float32; the last rank's shards empty.

    Two of them are equal and two tensors all the same, and a tied one's names stand in the middle.
    """
    n, rank, steps = group.size(), group.rank(), []
    for step, (part, dtype) in enumerate(((0.4, torch.float64), (0.6, torch.float32))):
        made = torch.Generator().manual_seed(seed * 31 + step)
        same = [torch.randn(shape, generator=made).to(dtype) for shape in ((), (5,), (2, 4))]
        made = torch.Generator().manual_seed(seed * 31 + step + 7 * (rank + 1))
        rows = 0 if rank == n - 1 else rank + 2
        own = [torch.randn(rows, *rest, generator=made).to(dtype) for rest in ((3, 2), (6,))]
        gradients = {
            "scale": same[0], "experts": own[0], TIED[0]: own[1], TIED[1]: own[1],
            "a": same[1], "b": same[1].clone(), "c": same[2],
        }  # fmt: skip
        cut = {"experts", *TIED}
        want = readings(gradients, cut, group)[0]
        steps.append(_tried(function, gradients, cut, group, part * want))
    return steps


def _tried(
    function: Callable,
    gradients: dict[str, Tensor],
    cut: set[str],
    group: dist.ProcessGroup,
    most: float,
) -> dict:
    """What the answer returned, by which factor it scaled each gradient, and what it sent."""
    before = {name: g.clone() for name, g in gradients.items()}
    want, wrong = readings(before, cut, group)
    given, given_cut = dict(gradients), set(cut)
    out, facts = bench.watched(lambda: function(given, given_cut, group, most))
    kept = given_cut == cut and list(given) == list(gradients)
    return {
        "kind": type(out).__name__,
        "norm": bench.number(out),
        "single": gradients[TIED[0]].dtype == torch.float32,
        "want": want,
        "most": most,
        "readings": wrong,
        "factors": {name: _factor(gradients[name], before[name]) for name in before},
        "changed": not (kept and all(given[name] is gradients[name] for name in given)),
        "bytes": facts["bytes"],
    }


def readings(
    gradients: dict[str, Tensor], cut: set[str], group: dist.ProcessGroup
) -> tuple[float, list[tuple[str, float]]]:
    """The norm, and those that each known wrong idea would give on this rank."""
    n = group.size()
    shards = {name: g.double() for name, g in gradients.items() if name in cut - {TIED[1]}}
    copies = {name: g.double() for name, g in gradients.items() if name not in cut}

    def added(what: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Of this rank's shards and of the copies, the sum of something over tensors."""
        zero = torch.zeros((), dtype=torch.float64)
        return tuple(sum(map(what, part.values()), zero) for part in (shards, copies))

    own, copied = added(lambda g: g.square().sum())
    tied = gradients[TIED[1]].double().square().sum()
    every = all_gather(torch.stack((own, tied))[None], group)  # (n, 2)
    cuts, ties = every.sum(0)
    norms, norms_of_copies = added(lambda g: g.norm())
    ones, ones_of_copies = added(lambda g: g.abs().sum())
    sums = all_reduce(torch.stack((norms, ones)), group)
    sizes = [g.abs().max() for g in (*shards.values(), *copies.values()) if g.numel()]
    largest = all_reduce(torch.stack(sizes).max(), group, "max")
    roots = every[:, 0].sqrt().sum()
    found = [
        ("copies counted n times #1", cuts + n * copied),
        ("tied counted twice", cuts + ties + copied),
        ("copies counted n times #2", cuts + ties + n * copied),
        ("a rank's own norm", own + copied),
        ("a rank's own norm", own + tied + copied),
        ("copies left out", cuts),
        ("shards left out", copied),
        ("averaged", cuts / n + copied),
        ("norms added", (sums[0] + norms_of_copies).square()),
        ("norms added", (every[:, 0] + copied).sqrt().sum().square()),
        ("norms added", roots.square() + copied),
        ("norms added", (roots + copied.sqrt()).square()),
        ("norms added", (cuts.sqrt() + copied.sqrt()).square()),
        ("the largest rank's", every[:, 0].max() + copied),
        ("no root", (cuts + copied).square()),
        ("another norm", (sums[1] + ones_of_copies).square()),
        ("another norm", largest.square()),
    ]
    return float((cuts + copied).sqrt()), [(name, float(one.sqrt())) for name, one in found]


def _factor(after: Tensor, before: Tensor) -> float | None:
    """By which factor a gradient was multiplied; None where it has no elements."""
    size = before.square().sum()
    if not before.numel() or not float(size):
        return None
    if (after.shape, after.dtype) != (before.shape, before.dtype):
        return float("nan")
    factor = float((after * before).sum() / size)
    rtol = 1e-9 if before.dtype == torch.float64 else 1e-5
    same = torch.allclose(after, factor * before, rtol=rtol, atol=1e-14)
    return factor if same else float("nan")
