"""Reductions in two forms: the torch.distributed operation and a function for one process.

A verb that reduces on arrival needs both forms. Lesson 01.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor

# For each reduction: torch.distributed's name, and the function over a leading dim in one process.
REDUCTIONS: dict[str, tuple[dist.ReduceOp, Callable[[Tensor], Tensor]]] = {
    "sum": (dist.ReduceOp.SUM, lambda parts: parts.sum(0, dtype=parts.dtype)),
    "max": (dist.ReduceOp.MAX, lambda parts: parts.amax(0)),
    "min": (dist.ReduceOp.MIN, lambda parts: parts.amin(0)),
    "product": (dist.ReduceOp.PRODUCT, lambda parts: parts.prod(0, dtype=parts.dtype)),
}


def reduction(op: str) -> tuple[dist.ReduceOp, Callable[[Tensor], Tensor]]:
    if op not in REDUCTIONS:
        raise ValueError(f"op={op!r} is not a reduction; choose from {', '.join(REDUCTIONS)}")
    return REDUCTIONS[op]
