"""The parameters of the optimizer: views of this rank's shard, or a float32 copy of them.

An optimizer never sees padding. For every parameter it gets the part in this rank's shard, as a
separate parameter. Lesson 09 derives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from course_lib.collectives.call import Group
from course_lib.collectives.direct import all_gather
from course_lib.collectives.transport import Handle
from course_lib.zero.optimizer_home import Home
from course_lib.zero.outside_changes import bring_back, take_over
from course_lib.zero.partition import IN_FLIGHT, BucketPiece, Partition

# (name, start, stop, place): read these elements of a flat parameter into `place`.
Read = Callable[[str, int, int, Tensor], None]


class Copies:
    """Stage 0: every rank updates all parameters, in the model or in a float32 copy."""

    @torch.no_grad()
    def __init__(self, partition: Partition, group: Group, home: Home):
        self.partition, self.home = partition, home
        self.own: list[list[tuple[BucketPiece, nn.Parameter]]] = []
        for bucket in partition.buckets:
            parts = []
            for slot in bucket.slots:
                piece = BucketPiece(slot, 0, slot.numel, slot.start)
                part = nn.Parameter(slot.parameter.float()) if home.copied else slot.parameter
                parts.append((piece, part))
            self.own.append(parts)

    def parts(self) -> Iterator[tuple[BucketPiece, nn.Parameter]]:
        """Return pairs of a parameter's piece on this rank and the optimizer's parameter for it."""
        return (pair for own in self.own for pair in own)

    def memory(self) -> list[Tensor]:
        """Return the tensors in memory for the update and its result."""
        return [part for _, part in self.parts()]

    def take(self, i: int, result: Tensor) -> None:
        """Add the sums for this rank's shard of bucket i to its parts' gradients."""
        self.home.take(self.own[i], result)

    def land(self) -> None:
        """Wait for gradients that are still being copied."""
        self.home.land()

    @torch.no_grad()
    def take_over(self) -> None:
        """Prepare an update: take over all changes made to the model since the last one."""
        if self.home.copied:
            take_over((part, piece.slot.parameter) for piece, part in self.parts())

    @torch.no_grad()
    def gather(self) -> None:
        """Copy the result of an update into the model, on every rank."""
        if self.home.copied:
            for piece, part in self.parts():
                piece.slot.parameter.copy_(part)

    def fill(self, read: Read) -> None:
        """Complete the model after its parts were read; here all of them are on this rank."""
        self.gather()


class Shards(Copies):
    """Stages 1 and 2: the full model in flat buffers of its buckets, and the shards that this rank
    updates, in the memory of the buffers or in copies in its home."""

    @torch.no_grad()
    def __init__(self, partition: Partition, group: Group, home: Home):
        self.partition, self.group, self.rank = partition, group, group.rank()
        self.home = home
        self.buffers: list[Tensor] = []
        self.own = []
        for i, bucket in enumerate(partition.buckets):
            buffer = bucket.buffer()
            for slot in bucket.slots:
                view = bucket.view(buffer, slot)
                view.copy_(slot.parameter)
                slot.parameter.data = view
            shard = bucket.shard(buffer, self.rank)
            self.buffers.append(buffer)
            pieces = bucket.pieces(self.rank)
            self.own.append(list(zip(pieces, home.keep(i, pieces, shard), strict=True)))
        home.ready()

    def memory(self) -> list[Tensor]:
        return [*super().memory(), *self.buffers]

    @torch.no_grad()
    def take_over(self) -> None:
        shards = []
        for bucket, buffer in zip(self.partition.buckets, self.buffers, strict=True):
            for slot in bucket.slots:
                bring_back(slot.name, slot.parameter, bucket.view(buffer, slot))
            shards.append(bucket.shard(buffer, self.rank))
        self.home.follow(self.own, shards)

    @torch.no_grad()
    def gather(self) -> None:
        """Gather all shards on every rank, after their owners have updated them."""
        under_way: deque[Handle] = deque()
        for bucket, buffer, own in zip(self.partition.buckets, self.buffers, self.own, strict=True):
            shard = bucket.shard(buffer, self.rank)
            if self.home.copied:
                for piece, part in own:
                    piece.of(shard).copy_(part, non_blocking=True)
            while len(under_way) >= IN_FLIGHT:
                under_way.popleft().wait()
            under_way.append(all_gather(buffer, self.group, async_op=True))
        while under_way:
            under_way.popleft().wait()

    @torch.no_grad()
    def fill(self, read: Read) -> None:
        """Complete the model without a message, by reading the other ranks' parts as well."""
        for bucket, buffer, own in zip(self.partition.buckets, self.buffers, self.own, strict=True):
            shard, spans = bucket.shard(buffer, self.rank), {}
            for piece, part in own:
                spans[piece.slot] = piece.start, piece.stop
                if self.home.copied:
                    piece.of(shard).copy_(part, non_blocking=True)
            for slot in bucket.slots:
                flat = bucket.view(buffer, slot).view(-1)
                first, last = spans.get(slot, (0, 0))
                for start, stop in ((0, first), (last, slot.numel)):
                    if start < stop:
                        read(slot.name, start, stop, flat[start:stop])
