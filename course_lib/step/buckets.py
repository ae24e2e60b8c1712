"""Gradients summed over the replicas in a few flat messages instead of one per parameter.

Every message has a fixed cost. Many short messages in one buffer have it only once. Lesson 08 uses
these buffers. Lesson 09 derives them and sends them while the backward pass still runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from course_lib import collectives
from course_lib.collectives.call import Group, check_member

MOST = 1 << 25  # bytes of a message, unless a single gradient is larger


@torch.no_grad()
def sum_gradients(parameters: Sequence[Tensor], group: Group, *, most: int = MOST) -> None:
    """Replace this rank's gradients by their sums over all ranks, in the parameters' order.

    A missing gradient counts as zeros, since other ranks may have used the parameter.
    """
    check_member(group)
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    for bucket in buckets(parameters, most):
        flat = torch.cat([p.grad.reshape(-1) for p in bucket])
        flat = collectives.all_reduce(flat, group, donated=True)
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad = part.view(p.shape)  # a view of the buffer, not a copy


def buckets(parameters: Sequence[Tensor], most: int = MOST) -> Iterator[list[Tensor]]:
    """Yield lists of consecutive parameters of one dtype and device, with at most `most` bytes."""
    if most < 1:
        raise ValueError(f"most={most} bytes: a bucket must hold at least one byte")
    open_: dict[tuple, list[Tensor]] = {}
    used: dict[tuple, int] = {}
    for p in parameters:
        kind, size = (p.grad.dtype, p.device), p.numel() * p.grad.element_size()
        if open_.get(kind) and used[kind] + size > most:
            yield open_.pop(kind)
        if kind not in open_:
            open_[kind], used[kind] = [], 0
        open_[kind].append(p)
        used[kind] += size
    yield from open_.values()
