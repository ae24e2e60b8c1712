"""A bucket as a reduce-scatter takes it, and what two exercises look at in a shard. Lesson 10."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

Gradients = Mapping[Tensor, Tensor]  # of parameters


def padded(flat: Tensor, n: int, front: bool = False) -> Tensor:
    """With zeros at its end, or in front of it, to a multiple of n."""
    zeros = -len(flat) % n
    return F.pad(flat, (zeros, 0) if front else (0, zeros))


def bucket(of: Gradients, order: Iterable[Tensor], n: int, each: bool = False) -> Tensor:
    """Gradients end to end in this order, padded at the end, or `each` by itself."""
    parts = [of[p].detach().flatten() for p in order]
    return padded(torch.cat([padded(x, n) for x in parts] if each else parts), n)


def shards(flat: Tensor, n: int) -> list[Tensor]:
    """The piece of every rank."""
    return list(flat.chunk(n))
