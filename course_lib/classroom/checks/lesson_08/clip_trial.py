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
PARTS = (0.2, 8.0, 0.7)


def train(function: Callable, seed: int, group: dist.ProcessGroup) -> dict:
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
    before = {name: g.clone() for name, g in gradients.items()}
    read = readings(before, cut, group)
    given = dict(gradients)
    out, facts = bench.watched(lambda: function(given, set(cut), group, most))
    told = {
        "kind": type(out).__name__,
        "norm": _number(out),
        "want": want,
        "most": most,
        "readings": read,
        "factors": {name: _factor(gradients[name], before[name]) for name in before},
        "bytes": facts["bytes"],
        "names": len(before),
        "tied": ["tokens.weight", "head.weight"],
        "cut": sorted(cut),
    }
    with torch.no_grad():
        for one in (whole, mine):
            for p in one.parameters():
                p -= 0.05 * p.grad
    return told


def readings(
    gradients: dict[str, Tensor], cut: set[str], group: dist.ProcessGroup
) -> dict[str, float]:
    """The norm that each known wrong idea would give on this rank."""
    squares = {name: g.square().sum() for name, g in gradients.items()}
    tied = squares["head.weight"]
    once = {name: one for name, one in squares.items() if name != "head.weight"}
    own = sum((one for name, one in once.items() if name in cut), tied * 0)
    copied = sum(one for name, one in once.items() if name not in cut)
    every = all_gather(torch.stack((own, tied))[None], group)  # (n, 2)
    n, (cuts, ties) = group.size(), every.sum(0)
    norms = torch.stack([one.sqrt() for name, one in once.items() if name in cut])
    added = all_reduce(norms, group).sum()
    added = added + sum(one.sqrt() for name, one in once.items() if name not in cut)
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
        "no root": (cuts + copied).square(),
    }
    return {name: float(one.sqrt()) for name, one in found.items()}


def _number(out: object) -> float | None:
    if isinstance(out, Tensor) and out.numel() == 1:
        return float(out.detach())
    return float(out) if isinstance(out, (int, float)) and not isinstance(out, bool) else None


def _factor(after: Tensor, before: Tensor) -> float | None:
    """By which factor a gradient was multiplied; None where it has no numbers."""
    size = before.square().sum()
    if not before.numel() or not float(size):
        return None
    factor = float((after * before).sum() / size)
    same = torch.allclose(after, factor * before, rtol=1e-9, atol=1e-14)
    return factor if same else float("nan")
