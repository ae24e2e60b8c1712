"""Data parallelism: every rank has the full model, and the sum of all ranks' gradients.

The all-reduce of a bucket overlaps the backward pass of the layers below it. This is stage 0, the
reference for the other stages. Lesson 09 begins with it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from course_lib.collectives import all_reduce, broadcast
from course_lib.collectives.call import Group, labelled, size_and_rank
from course_lib.collectives.transport import Handle
from course_lib.meta import begins_at
from course_lib.zero.buckets import Gradients
from course_lib.zero.partition import BUCKET, Partition, partition
from course_lib.zero.refusals import check_free
from course_lib.zero.shards import Copies


class SummedGradients(Gradients):
    """Gradients that every rank replaces by their sums over all ranks."""

    def __init__(self, partition: Partition, group: Group, copies: Copies | None = None):
        super().__init__(partition, group)
        self.copies = copies

    def send(self, i: int, buffer: Tensor) -> Handle:
        return all_reduce(buffer, self.group, donated=True, async_op=True)

    def receive(self, i: int, result: Tensor) -> None:
        if begins_at(result) != begins_at(self.buffers[i]):
            self.buffers[i].copy_(result)

    def finish(self) -> None:
        super().finish()
        if not self.sync:
            return
        for bucket, buffer in zip(self.partition.buckets, self.buffers, strict=True):
            for slot in bucket.slots:
                used = slot.parameter in self.used
                slot.parameter.grad = bucket.view(buffer, slot) if used else None
        if self.copies is not None and self.copies.home.copied:
            for piece, part in self.copies.parts():
                grad = piece.slot.parameter.grad
                part.grad = None if grad is None else grad.float()


class DataParallel(nn.Module):
    """A module whose gradients are, after each backward pass, the mean over a group.

    In `no_sync()`, gradients add up without a message. The next backward pass outside sends them.
    """

    def __init__(self, module: nn.Module, group: Group, *, bucket_bytes: int = BUCKET):
        super().__init__()
        n, _ = size_and_rank(group)
        check_free(module)
        self.module, self.group = module, group
        same_everywhere(module, group)
        parts = partition(module.named_parameters(), n, most_bytes=bucket_bytes)
        self.gradients = _Mean(parts, group)

    def forward(self, *args, **keys):
        if self.training and self.gradients.sync:
            same_buffers(self.module, self.group)
        return self.module(*args, **keys)

    def no_sync(self) -> AbstractContextManager:
        return self.gradients.no_sync()


class _Mean(SummedGradients):
    def send(self, i: int, buffer: Tensor) -> Handle:
        # Divided before it is summed, because a sum in 16 bits could overflow.
        return super().send(i, buffer.div_(self.group.size()))


@torch.no_grad()
def same_everywhere(module: nn.Module, group: Group) -> None:
    """Give every rank of the group the parameters and buffers of its first rank."""
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.copy_(broadcast(tensor.detach(), group))


@torch.no_grad()
def same_buffers(module: nn.Module, group: Group) -> None:
    """Give every rank the first rank's persistent buffers, such as a BatchNorm's statistics, with
    one message per dtype, or none if there are no buffers."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                by_dtype.setdefault(buffer.dtype, []).append(buffer)
    if group.size() == 1:
        return
    for buffers in by_dtype.values():
        with labelled("buffers"):
            flat = broadcast(torch.cat([buffer.reshape(-1) for buffer in buffers]), group)
        for buffer, new in zip(buffers, flat.split([x.numel() for x in buffers]), strict=True):
            buffer.copy_(new.view(buffer.shape))
