"""What `gather_from` of lesson 03 is tried with on the judge's ranks: one gather, then several.

Nothing here says what is right.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.layers import alone_in_a_group
from course_lib.classroom.checks.lesson_03 import kept
from course_lib.classroom.checks.lesson_03.trial import (
    FACTOR,
    leaf,
    numbers,
    there_and_back,
)

REPLICATED, SHARDED = "replicated", "sharded"


def owner(after: str, rank: int) -> tuple[str, int]:
    """The name, and the rank, of what the gathered tensor is multiplied with on a rank."""
    return ("v", 0) if after == REPLICATED else ("w", rank)


def both(
    function: Callable,
    group: dist.ProcessGroup,
    seed: int,
    shape: list[int],
    dim: int,
    sizes: list[int],
) -> list[dict]:
    """A gather, and after it the same work on every rank; then with work of each rank's own."""
    r, whole, found = group.rank(), list(shape), []
    whole[dim] = sum(sizes)
    for after in (REPLICATED, SHARDED):
        x, lengths = leaf(numbers(seed, "x", 0, *whole).split(sizes, dim)[r]), list(sizes)
        weights = numbers(seed, *owner(after, r), *whole)
        how = (group, dim, lengths, after)
        report = there_and_back(
            lambda x, how=how: function(x, *how), x, weights, lambda out, w: out**2 * w
        )
        report |= {"lengths": lengths == sizes, "kept": 0}
        if 0 in sizes and report["grad"] is not None:  # of another x, that no other step needs
            more = (group, dim, list(sizes), after)
            report["kept"], _ = bench.watched(
                lambda x=x, more=more: kept.call(function, (one * 1 for one in [x]), *more)
            )
        found.append(report)
    return found


def at_once(
    function: Callable, group: dist.ProcessGroup, seed: int, uses: list[tuple]
) -> list[dict]:
    """Several gathers whose backwards come when all forwards have been: each with its own dtype,
    dim, sizes and consumer; what has one size is in a group of this rank alone."""
    own, made, found = alone_in_a_group(), [], []
    for i, (dtype, whole, dim, sizes, after) in enumerate(uses):
        where = own if len(sizes) == 1 else group
        x = numbers(seed + i, "x", 0, *whole).to(getattr(torch, dtype))
        x = leaf(x.split(sizes, dim)[where.rank()])
        w = numbers(seed + i, *owner(after, where.rank()), *whole).to(x.dtype)
        u = leaf(torch.zeros_like(w))
        beside = FACTOR * u  # made before the gather, so that autograd comes to it after the gather
        out, _ = bench.watched(
            lambda x=x, at=where, how=(dim, list(sizes), after): function(x, at, *how)
        )
        made.append((x, u, out, (beside + out) * w))
    for x, u, out, product in made:
        bench.watched(lambda product=product: product.sum().backward())
        report = bench.described(out) | {"out": out.detach().double(), "beside": u.grad.double()}
        found.append({**report, "grad": None if x.grad is None else x.grad.double()})
    bench.end(own)
    return found
