"""What runs on the judge's ranks for `agreed_step`: six steps, two of them not to be taken.

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
# (kind, most as a part of the norm, size of the gradients); what is not finite comes in on one rank
# alone. In the first step even what is still scaled is not too long, so that no clipping hides it;
# in the fifth nothing is clipped; in the last the norm is so small that 1e-6 beside it counts.
STEPS = (
    ("good", 3 * SCALE, 1.0), ("inf", 0.5, 1.0), ("good", 0.4, 1.0),
    ("nan", 3.0, 1.0), ("good", 1.2, 1.0), ("good", 0.7, 1e-5),
)  # fmt: skip
ONE, CLOSE = 1e-6, 1e-8  # of a factor, which may have been a float32; from element to element


def warm() -> None:
    """Optimizers load half of torch at their first use."""
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=RATE, momentum=MOMENTUM).step()


def sizes(n: int) -> list[list[int]]:
    """The lengths of each rank's parts: uneven, and one rank's shard is empty among three."""
    return [[5, 3], [0], [4, 2]][:n] if n > 2 else [[5, 3], [6, 2]]


def train(function: Callable, group: Group, seed: int) -> list[dict]:
    """Six steps of the answer, beside one process's."""
    n, rank = group.size(), group.rank()
    made = torch.Generator().manual_seed(seed)
    start = [[torch.randn(k, generator=made, dtype=torch.float64) for k in own] for own in sizes(n)]
    parts = [nn.Parameter(x.clone()) for x in start[rank]]
    optimizer = torch.optim.SGD(parts, lr=RATE, momentum=MOMENTUM)
    scale, told = SCALE, []
    for kind, portion, size in STEPS:
        true = [[size * torch.randn(k, generator=made, dtype=torch.float64) for k in own]
                for own in sizes(n)]  # fmt: skip
        norm = math.sqrt(sum(float(g.square().sum()) for own in true for g in own))
        own_norm = math.sqrt(sum(float(g.square().sum()) for g in true[rank]))
        most = portion * norm
        grads = [g * scale for g in true[rank]]
        culprit = n - 1 if kind == "inf" else 0
        if kind != "good" and rank == culprit:
            where = -1 if kind == "inf" else 0  # the last part, the first part
            grads[where][1] = math.inf if kind == "inf" else math.nan
        before = [p.detach().clone() for p in parts]
        moments = [_moment(optimizer, p) for p in parts]
        for p, g in zip(parts, grads, strict=True):
            p.grad = g.clone()
        given = list(parts)
        out, facts = bench.watched(
            lambda now=scale, top=most, own=given: function(own, optimizer, now, top, group)
        )
        pair = isinstance(out, (tuple, list)) and len(out) == 2
        stepped, next_scale = (_plain(out[0]), _plain(out[1])) if pair else (None, None)
        after = [_moment(optimizer, p) for p in parts]
        factor = min(1.0, most / (norm + 1e-6))
        pairs = zip(before, parts, strict=True)
        by = _factor(before, parts, moments, true[rank])
        good = by is None or math.isclose(by, factor, rel_tol=ONE)
        told.append(
            {
                "kind": bench.kind(out),
                "changed": list(map(id, given)) != list(map(id, parts)),
                "step": kind,
                "culprit": culprit,
                "pair": pair,
                "stepped": None if stepped is None else bool(stepped),
                "scale": next_scale,
                "was": scale,
                "weights moved": any(not torch.equal(a, p.detach()) for a, p in pairs),
                "moments moved": not all(map(_same, moments, after)),
                "factor": by,
                "rounded": math.isnan(by or 0.0),
                "fits": math.isclose(
                    _factor(before, parts, moments, true[rank], 1e-5) or factor,
                    factor,
                    rel_tol=1e-5,
                ),
                "factors": _factors(factor, scale, most, norm, own_norm, _norms(true)),
                "left": sum(p.grad is not None for p in parts),
                "good": good,
                "bytes": facts["bytes"],
            }
        )
        scale = scale / 2 if kind != "good" else scale
    return told


def _norms(true: list[list[Tensor]]) -> list[float]:
    """The norm of each rank's shard."""
    return [math.sqrt(sum(float(g.square().sum()) for g in own)) for own in true]


def _factors(
    right: float, scale: float, most: float, norm: float, own: float, norms: list[float]
) -> dict[str, float]:
    """By what a scaled gradient's true value would be multiplied under each idea."""

    def clipped(length: float) -> float:
        return min(1.0, most / (length + 1e-6))

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
        "squared": clipped(norm**2),
        "held against the square": most / (norm + 1e-6) if norm**2 > most else 1.0,
        "norms added": clipped(sum(norms)),
        "the largest norm": clipped(max(norms)),
        "a mean of squares": clipped(norm / len(norms) ** 0.5),
        "no 1e-6": min(1.0, most / norm),
    }


def _factor(
    before: list[Tensor],
    parts: list[nn.Parameter],
    moments: list[Tensor | None],
    true: list,
    close: float = CLOSE,
) -> float | None:
    """By what the true gradient was multiplied; NaN where no factor explains the step."""
    found = []
    for old, p, moment, g in zip(before, parts, moments, true, strict=True):
        if not g.numel():
            continue
        step = (old - p.detach()) / RATE - (0.0 if moment is None else MOMENTUM * moment)
        factor = float((step * g).sum() / g.square().sum())
        # A weight is about 1, and a difference of two is as exact as they are.
        same = torch.allclose(step, factor * g, rtol=close, atol=1e-13 * max(1.0, abs(factor)))
        found.append(factor if same else math.nan)
    if not found:
        return None
    alike = all(math.isclose(one, found[0], rel_tol=close) for one in found)
    return found[0] if alike else math.nan


def _moment(optimizer: torch.optim.Optimizer, p: nn.Parameter) -> Tensor | None:
    kept = optimizer.state.get(p, {}).get("momentum_buffer")
    return None if kept is None else kept.clone()


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None) == (b is None) and (a is None or torch.equal(a, b))


def _plain(value: object) -> float | None:
    """A number or a yes, however it is wrapped."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, Tensor) and bench.plain(value) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, bool) else bench.number(value)
