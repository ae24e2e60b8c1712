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


def train(function: Callable, group: dist.ProcessGroup, seed: int) -> dict:
    """Three steps; what the answer gave in each, and how far the weights are off at the end."""
    config = model.GPT2.changed(layers=1, inner=4)  # on three ranks one has no row of `up`
    whole = model.dense(config, seed)
    mine = model.cut_over(copy.deepcopy(whole), group)
    steps = [
        _step(function, whole, mine, part, model.tokens(config, seed + 7 * k), group)
        for k, part in enumerate(PARTS)
    ]
    table = mine.tokens
    gap = (mine.norm.weight - whole.norm.weight).abs().max()
    gap = max(gap, (table.weight - whole.tokens.weight[table.start : table.stop]).abs().max())
    return {"steps": steps, "gap": float(gap)}


def _step(
    function: Callable,
    whole: nn.Module,
    mine: nn.Module,
    part: float,
    tokens: tuple[Tensor, Tensor],
    group: dist.ProcessGroup,
) -> dict:
    ids, targets = tokens
    for one in (whole, mine):
        one.zero_grad()
    F.cross_entropy(whole(ids).flatten(0, 1), targets.flatten()).backward()
    cross_entropy(mine(ids), targets, group, vocabulary=mine.config.vocabulary).backward()
    want = float(nn.utils.get_total_norm([p.grad for p in whole.parameters()]))
    most = part * want
    nn.utils.clip_grad_norm_(whole.parameters(), most)

    # A tied weight goes by two names.
    named = dict(mine.named_parameters(remove_duplicate=False))
    copies = {id(p) for _, p in replicated(mine)}
    gradients = {name: p.grad for name, p in named.items()}
    cut = {name for name, p in named.items() if id(p) not in copies}
    told = _tried(function, gradients, cut, group, most) | {"want": want}
    with torch.no_grad():
        for one in (whole, mine):
            for p in one.parameters():
                p -= 0.05 * p.grad
    return told


def alone(function: Callable, group: dist.ProcessGroup, seed: int) -> dict:
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
        want = readings(gradients, cut, group)["right"]
        steps.append(_tried(function, gradients, cut, group, part * want))
    return {"steps": steps, "gap": 0.0}


def _tried(
    function: Callable,
    gradients: dict[str, Tensor],
    cut: set[str],
    group: dist.ProcessGroup,
    most: float,
) -> dict:
    """What the answer returned, by which factor it scaled each gradient, and what it sent."""
    before = {name: g.clone() for name, g in gradients.items()}
    read = readings(before, cut, group)
    given, given_cut = dict(gradients), set(cut)
    out, facts = bench.watched(lambda: function(given, given_cut, group, most))
    kept = given_cut == cut and list(given) == list(gradients)
    return {
        "kind": type(out).__name__,
        "norm": bench.number(out),
        "single": gradients[TIED[0]].dtype == torch.float32,
        "want": read["right"],
        "most": most,
        "readings": read,
        "factors": {name: _factor(gradients[name], before[name]) for name in before},
        "changed": not (kept and all(given[name] is gradients[name] for name in given)),
        "bytes": facts["bytes"],
        "names": len(before),
        "tied": list(TIED),
        "cut": sorted(cut),
    }


def readings(
    gradients: dict[str, Tensor], cut: set[str], group: dist.ProcessGroup
) -> dict[str, float]:
    """The norm that each known wrong idea would give on this rank."""
    squares = {name: g.double().square().sum() for name, g in gradients.items()}
    twin = TIED[1]
    tied = squares[twin]
    once = {name: one for name, one in squares.items() if name != twin}
    own = sum((one for name, one in once.items() if name in cut), tied * 0)
    copied = sum(one for name, one in once.items() if name not in cut)
    every = all_gather(torch.stack((own, tied))[None], group)  # (n, 2)
    n, (cuts, ties) = group.size(), every.sum(0)
    norms = torch.stack([one.sqrt() for name, one in once.items() if name in cut])
    added = all_reduce(norms, group).sum()
    added = added + sum(one.sqrt() for name, one in once.items() if name not in cut)
    sizes = {name: gradients[name].double().abs() for name in once}
    shards = sum((one.sum() for name, one in sizes.items() if name in cut), tied * 0)
    ones = all_reduce(shards, group)
    ones = ones + sum(one.sum() for name, one in sizes.items() if name not in cut)
    largest = torch.stack([one.max() for one in sizes.values() if one.numel()]).max()
    largest = all_reduce(largest, group, "max")
    found = {
        "right": cuts + copied,
        "copies counted n times": cuts + n * copied,
        "tied counted twice": cuts + ties + copied,
        "tied twice, copies n times": cuts + ties + n * copied,
        "a rank's own": own + copied,
        "a rank's own, tied twice": own + tied + copied,
        "copies left out": cuts,
        "shards left out": copied,
        "averaged": cuts / n + copied,
        "norms added": added.square(),
        "norms of ranks added": (every[:, 0] + copied).sqrt().sum().square(),
        "the largest rank's": every[:, 0].max() + copied,
        "norms of shards added": every[:, 0].sqrt().sum().square() + copied,
        "norms of both added": (every[:, 0].sqrt().sum() + copied.sqrt()).square(),
        "root of the shards alone": (cuts.sqrt() + copied.sqrt()).square(),
        "no root": (cuts + copied).square(),
        "absolute values": ones.square(),
        "largest element": largest.square(),
    }
    return {name: float(one.sqrt()) for name, one in found.items()}


def _factor(after: Tensor, before: Tensor) -> float | None:
    """By which factor a gradient was multiplied; None where it has no numbers."""
    size = before.square().sum()
    if not before.numel() or not float(size):
        return None
    factor = float((after * before).sum() / size)
    rtol = 1e-9 if before.dtype == torch.float64 else 1e-5
    same = torch.allclose(after, factor * before, rtol=rtol, atol=1e-14)
    return factor if same else float("nan")
