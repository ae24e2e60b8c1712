"""What the optimizer updates: views of this rank's shard, or a float32 copy of them.

An optimizer never sees padding: it gets, of every parameter, the part that lies in this rank's
shard, as a parameter of its own. Lesson 09 derives it.
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

# (name, start, stop, place): put these elements of a parameter, flat, into `place`.
Read = Callable[[str, int, int, Tensor], None]


class Copies:
    """Stage 0: every rank updates everything, in the model itself or in a copy in float32."""

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
        """Every piece of a parameter that this rank updates, and what the optimizer knows it as."""
        return (pair for own in self.own for pair in own)

    def memory(self) -> list[Tensor]:
        """What lies in memory for the update and for what it is brought back to."""
        return [part for _, part in self.parts()]

    def take(self, i: int, result: Tensor) -> None:
        """Add the sums for this rank's shard of bucket i to its parts' gradients."""
        self.home.take(self.own[i], result)

    def land(self) -> None:
        """Wait for gradients that are on their way to where they are used."""
        self.home.land()

    @torch.no_grad()
    def take_over(self) -> None:
        """Before an update: what was written to the model since the last one is what it starts
        from."""
        if self.home.copied:
            take_over((part, piece.slot.parameter) for piece, part in self.parts())

    @torch.no_grad()
    def gather(self) -> None:
        """After the update: bring it back into the model, on every rank."""
        if self.home.copied:
            for piece, part in self.parts():
                piece.slot.parameter.copy_(part)

    def fill(self, read: Read) -> None:
        """After the parts were read from somewhere: all of them are here."""
        self.gather()


class Shards(Copies):
    """Stages 1 and 2: the model whole, in the flat buffers of its buckets, and of each the shard
    that this rank updates: in the buffers' own memory, or where its home has a copy."""

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
        """Give every rank every shard, after the owners have updated theirs."""
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
        """`gather` without a message: what is not this rank's part is read as well."""
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
