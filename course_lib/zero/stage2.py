"""ZeRO-2: a gradient is sent as soon as its bucket is full, and only the shard's sum is kept.

A gradient that is not kept cannot wait for the next micro-batch, so accumulation now costs one
reduce-scatter per micro-batch. Lesson 10 derives it.
"""

from __future__ import annotations

from torch import Tensor, nn

from course_lib.collectives.call import Group
from course_lib.collectives.direct import reduce_scatter
from course_lib.collectives.transport import Handle
from course_lib.zero.buckets import Gradients
from course_lib.zero.partition import IN_FLIGHT, Partition
from course_lib.zero.shards import Shards


class ShardGradients(Gradients):
    """Full gradients, kept only until their bucket is sent, and sums that the shards accumulate."""

    keep = False
    in_flight = IN_FLIGHT

    def __init__(self, partition: Partition, group: Group, shards: Shards):
        super().__init__(partition, group)
        self.shards = shards
        self.so_far: set[nn.Parameter] = set()  # used since the last `forget`

    def send(self, i: int, buffer: Tensor) -> Handle:
        for slot in self.partition.buckets[i].slots:
            slot.parameter.grad = None
        self.buffers[i] = None  # the message in progress holds it
        return reduce_scatter(buffer, self.group, async_op=True)

    def receive(self, i: int, result: Tensor) -> None:
        self.shards.take(i, result)

    def finish(self) -> None:
        super().finish()
        self.shards.land()
        if self.sync:
            self.so_far |= self.used
            for piece, part in self.shards.parts():
                if piece.slot.parameter not in self.so_far:
                    part.grad = None

    def forget(self) -> None:
        super().forget()
        self.so_far.clear()
