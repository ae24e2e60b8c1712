"""What runs on the judge's ranks for `kv_heads_on_ranks`: the learner's plans, carried out.

Each rank computes its query heads, forward and backward, and the gradients of k and v are summed
over the ranks that the plan names. Lesson 05.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.collectives import all_gather

SIZE, HIDDEN, BATCH, LENGTH = 3, 7, 2, 4
MOST = 100  # numbers that are read of one part of a triple
Plan = list[tuple[list[int], list[int], list[int]]]  # of each rank: q heads, kv heads, partners


def plans(
    function: Callable, group: dist.ProcessGroup, cases: list[tuple[int, int, int]]
) -> list[dict]:
    """What the function says for each (heads, kv_heads, n), or the ValueError that it raised."""
    return [plan(function, *case) for case in cases]


def plan(function: Callable, heads: int, kv_heads: int, n: int) -> dict:
    refused = False

    def call():
        nonlocal refused
        try:
            return function(heads, kv_heads, n)
        except ValueError:
            refused = True

    out, facts = bench.watched(call)
    return {
        "kind": type(out).__name__,
        "refused": refused,
        "length": len(out) if isinstance(out, (list, tuple)) else 0,
        "ops": facts["ops"],
        "plan": as_plan(out),
    }


def as_plan(out: object) -> Plan | None:
    """The plan as lists of whole numbers; None where it is nothing of the kind."""
    if not isinstance(out, (list, tuple)):
        return None
    try:
        rows = [tuple(map(_numbers, islice(row, 4))) for row in out]
    except Exception:  # whatever a thing does that is no list of numbers
        return None
    return rows if rows and all(len(row) == 3 for row in rows) else None


def _numbers(part: Iterable) -> list[int]:
    if isinstance(part, (str, bytes, dict)):
        raise TypeError
    some = list(islice(sorted(part) if isinstance(part, (set, frozenset)) else part, MOST))
    if any(one != int(one) for one in some):
        raise ValueError
    return list(map(int, some))


class Attention:
    """Grouped attention in float64 with fresh weights, the same on all ranks."""

    def __init__(self, heads: int, kv_heads: int, seed: int):
        made = torch.Generator().manual_seed(seed * 1019 + heads * 7 + kv_heads)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=made, dtype=torch.float64)

        self.each = heads // kv_heads
        self.x = numbers(BATCH, LENGTH, HIDDEN)
        self.q = numbers(heads, SIZE, HIDDEN)
        self.k, self.v = numbers(kv_heads, SIZE, HIDDEN), numbers(kv_heads, SIZE, HIDDEN)
        self.pull = numbers(heads, BATCH, LENGTH, SIZE)  # the loss is the product with this
        self.dense = self.gradients(list(range(heads)))

    def gradients(self, queries: list[int]) -> Tensor:
        """dL/dk and dL/dv, (2, kv heads, SIZE, HIDDEN), where these heads alone are computed."""
        k, v = (w.clone().requires_grad_() for w in (self.k, self.v))
        read = [head // self.each for head in queries]  # the key/value head of each
        weights = (self.q[queries], k[read], v[read])  # (heads, SIZE, HIDDEN) each
        parts = [torch.einsum("bsh,ndh->nbsd", self.x, w) for w in weights]
        y = F.scaled_dot_product_attention(*parts, is_causal=True)  # (heads, b, s, SIZE)
        (y * self.pull[queries]).sum().backward()
        return torch.stack((k.grad, v.grad))


def gap(own: list[Tensor], attention: Attention, plan: Plan, rank: int) -> float:
    """How far a rank's summed kv gradients are from the dense ones, as a part of their size.

    A rank's gradient is that of the key/value heads that it holds, whichever they are; infinite
    where what should be summed has not even one shape.
    """
    _, kv, partners = plan[rank]
    whole = attention.dense[:, kv]
    summed = torch.zeros_like(whole)
    for partner in partners:
        theirs = own[partner][:, plan[partner][1]]
        if theirs.shape != summed.shape:
            return float("inf")
        summed = summed + theirs
    return float((summed - whole).norm() / whole.norm())


def played(plan: Plan, heads: int, kv_heads: int, seed: int) -> list[float]:
    """The gap on each rank of a plan, with all of its ranks played by this process."""
    attention = Attention(heads, kv_heads, seed)
    own = [attention.gradients(queries) for queries, _, _ in plan]
    return [gap(own, attention, plan, rank) for rank in range(len(plan))]


def run(
    function: Callable, group: dist.ProcessGroup, plan: Plan, heads: int, kv_heads: int, seed: int
) -> float:
    """The gap on this rank, where each rank of the group computes its own heads by a plan that the
    answer has given before."""
    attention, me = Attention(heads, kv_heads, seed), group.rank()
    mine = attention.gradients(plan[me][0])
    own = list(all_gather(mine[None], group).unbind())  # the sum over *some* ranks, by hand
    return gap(own, attention, plan, me)
