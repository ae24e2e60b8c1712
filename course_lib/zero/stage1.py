"""ZeRO-1: each rank updates its own shard, so it has only the optimizer states of that shard.

The gradients' all-reduce becomes a reduce-scatter. Its other half, an all-gather, follows the
update and carries parameters instead, with the same bytes. Lesson 09 derives it.
"""

from __future__ import annotations

from torch import Tensor

from course_lib.collectives.call import Group
from course_lib.collectives.direct import reduce_scatter
from course_lib.collectives.transport import Handle
from course_lib.zero.buckets import Gradients
from course_lib.zero.partition import IN_FLIGHT, Partition
from course_lib.zero.shards import Shards


class ScatteredGradients(Gradients):
    """Full gradients that accumulate on each rank, followed by sums of only its shard."""

    in_flight = IN_FLIGHT

    def __init__(self, partition: Partition, group: Group, shards: Shards):
        super().__init__(partition, group)
        self.shards = shards

    def send(self, i: int, buffer: Tensor) -> Handle:
        return reduce_scatter(buffer, self.group, async_op=True)

    def receive(self, i: int, result: Tensor) -> None:
        self.partition.buckets[i].shard(self.buffers[i], self.group.rank()).copy_(result)

    def finish(self) -> None:
        super().finish()
        if not self.sync:
            return
        for i, (bucket, buffer, own) in enumerate(
            zip(self.partition.buckets, self.buffers, self.shards.own, strict=True)
        ):
            shard = bucket.shard(buffer, self.group.rank())
            for _, part in own:
                part.grad = None
            self.shards.take(i, shard)
            for slot in bucket.slots:  # outside the shard it is not a sum
                slot.parameter.grad = None
        self.shards.land()
        for piece, part in self.shards.parts():
            if piece.slot.parameter not in self.used:
                part.grad = None
