"""Gradients summed over the replicas in a few flat messages instead of one a parameter.

A message costs something however short it is; many short ones in one buffer cost it once. Lesson
08 takes it as it is, lesson 09 derives it and sends the buffers while the backward still runs.
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
    """Put the sum of all ranks' gradients in place of this rank's, in the parameters' order.

    A parameter without a gradient has one of zeros: other ranks may have used it.
    """
    check_member(group)
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    for bucket in buckets(parameters, most):
        flat = torch.cat([p.grad.reshape(-1) for p in bucket])
        flat = collectives.all_reduce(flat, group, donated=True)
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad = part.view(p.shape)  # the buffer itself: nothing is copied back


def buckets(parameters: Sequence[Tensor], most: int = MOST) -> Iterator[list[Tensor]]:
    """The parameters in order, as lists of one dtype and device and of at most `most` bytes."""
    if most < 1:
        raise ValueError(f"most={most} bytes: a bucket has to hold something")
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
