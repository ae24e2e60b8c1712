"""What runs on the judge's ranks for `agreed_step`: five steps, two of them not to be taken.

One process trains all numbers beside the shards; from what a step did to a shard follows by which
factor its gradient was multiplied. Lesson 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.collectives.call import Group

RATE, MOMENTUM, SCALE = 0.1, 0.9, 2.0**10
# (kind, most as a part of the norm); what is not finite comes in on one rank alone. In the first
# step even what is still scaled is not too long, so that no clipping hides it.
STEPS = (("good", 3 * SCALE), ("inf", 0.5), ("good", 0.4), ("nan", 3.0), ("good", 0.7))


def warm() -> None:
    """Optimizers load half of torch at their first use."""
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=RATE, momentum=MOMENTUM).step()


def sizes(n: int) -> list[list[int]]:
    """The lengths of each rank's parts: uneven, and one rank's shard is empty among three."""
    return [[5, 3], [0], [4]][:n] if n > 2 else [[5, 3], [6]]


def train(function: Callable, seed: int, group: Group) -> list[dict]:
    """Five steps of the answer, beside one process's."""
    n, rank = group.size(), group.rank()
    made = torch.Generator().manual_seed(seed)
    start = [[torch.randn(k, generator=made, dtype=torch.float64) for k in own] for own in sizes(n)]
    parts = [nn.Parameter(x.clone()) for x in start[rank]]
    optimizer = torch.optim.SGD(parts, lr=RATE, momentum=MOMENTUM)
    right = [p.detach().clone() for p in parts]
    right_moments: list[Tensor | None] = [None] * len(parts)
    scale, told = SCALE, []
    for kind, portion in STEPS:
        true = [[torch.randn(k, generator=made, dtype=torch.float64) for k in own]
                for own in sizes(n)]  # fmt: skip
        norm = math.sqrt(sum(float(g.square().sum()) for own in true for g in own))
        own_norm = math.sqrt(sum(float(g.square().sum()) for g in true[rank]))
        most = portion * norm
        grads = [g * scale for g in true[rank]]
        culprit = n - 1 if kind == "inf" else 0
        if kind != "good" and rank == culprit:
            grads[0][1] = math.inf if kind == "inf" else math.nan
        before = [p.detach().clone() for p in parts]
        moments = [_moment(optimizer, p) for p in parts]
        for p, g in zip(parts, grads, strict=True):
            p.grad = g.clone()
        out, facts = bench.watched(
            lambda now=scale, top=most: function(list(parts), optimizer, now, top, group)
        )
        pair = isinstance(out, (tuple, list)) and len(out) == 2
        stepped, next_scale = (_plain(out[0]), _plain(out[1])) if pair else (None, None)
        after = [_moment(optimizer, p) for p in parts]
        factor = min(1.0, most / (norm + 1e-6))
        if kind == "good":
            for i, g in enumerate(true[rank]):
                old = right_moments[i]
                new = factor * g if old is None else MOMENTUM * old + factor * g
                right_moments[i] = new
                right[i] = right[i] - RATE * new
        pairs = zip(before, parts, strict=True)
        gaps = [float((a - p.detach()).abs().max())
                for a, p in zip(right, parts, strict=True) if a.numel()]  # fmt: skip
        told.append(
            {
                "kind": type(out).__name__,
                "step": kind,
                "culprit": culprit,
                "pair": pair,
                "stepped": None if stepped is None else bool(stepped),
                "scale": next_scale,
                "was": scale,
                "weights moved": any(not torch.equal(a, p.detach()) for a, p in pairs),
                "moments moved": not all(map(_same, moments, after)),
                "factor": _factor(before, parts, moments, true[rank]),
                "factors": _factors(factor, scale, most, norm, own_norm),
                "left": sum(p.grad is not None for p in parts),
                "gap": max((math.inf if math.isnan(gap) else gap for gap in gaps), default=0.0),
                "bytes": facts["bytes"],
            }
        )
        scale = scale / 2 if kind != "good" else scale
    return told


def _factors(right: float, scale: float, most: float, norm: float, own: float) -> dict[str, float]:
    """By what a scaled gradient's true value would be multiplied under each idea."""
    return {
        "right": right,
        "not unscaled": scale * min(1.0, most / (scale * norm + 1e-6)),
        "not unscaled, not clipped": scale,
        "not unscaled, clipped by the true norm": scale * right,
        "clipped before unscaling": min(1.0, most / (scale * norm + 1e-6)),
        "unscaled twice": right / scale,
        "not clipped": 1.0,
        "its own norm": min(1.0, most / (own + 1e-6)),
        "always to most": most / (norm + 1e-6),
    }


def _factor(
    before: list[Tensor], parts: list[nn.Parameter], moments: list[Tensor | None], true: list
) -> float | None:
    """By what the true gradient was multiplied; NaN where no factor explains the step."""
    found = []
    for old, p, moment, g in zip(before, parts, moments, true, strict=True):
        if not g.numel():
            continue
        step = (old - p.detach()) / RATE - (0.0 if moment is None else MOMENTUM * moment)
        factor = float((step * g).sum() / g.square().sum())
        same = torch.allclose(step, factor * g, rtol=1e-7, atol=1e-9 * max(1.0, abs(factor)))
        found.append(factor if same else math.nan)
    if not found:
        return None
    return found[0] if all(math.isclose(one, found[0], rel_tol=1e-6) for one in found) else math.nan


def _moment(optimizer: torch.optim.Optimizer, p: nn.Parameter) -> Tensor | None:
    kept = optimizer.state.get(p, {}).get("momentum_buffer")
    return None if kept is None else kept.clone()


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None) == (b is None) and (a is None or torch.equal(a, b))


def _plain(value: object) -> float | None:
    """A number or a yes, however it is wrapped."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, (bool, int, float)) else None
