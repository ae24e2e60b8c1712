"""Stage 2's gradients in buckets that are units: one is freed when its gradients have left.

A backward ends with all units freed, whatever has become of it. Lesson 11 derives it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor, nn

from course_lib.collectives.transport import Handle
from course_lib.zero.buckets import check_dense
from course_lib.zero.partition import Slot
from course_lib.zero.stage2 import ShardGradients
from course_lib.zero.stage3.unit_shards import UnitShards


class UnitGradients(ShardGradients):
    """Stage 2's gradients, in buckets that are units; one is freed once its gradient has left."""

    shards: UnitShards

    def _take(self, i: int, slot: Slot) -> None:
        check_dense(slot)
        if self.buffers[i] is None:
            self.buffers[i] = self.partition.buckets[i].room()
        self.partition.buckets[i].view(self.buffers[i], slot).copy_(slot.parameter.grad)
        slot.parameter.grad = None

    def send(self, i: int, buffer: Tensor) -> Handle:
        unit = self.shards.units[-1 - i]
        unit.owes = False
        unit.free_if_done()
        return super().send(i, buffer)

    def expect(self, loss: Tensor) -> set[nn.Parameter]:
        there = super().expect(loss)
        for unit in self.shards.units:
            trained = [slot.parameter for slot in unit.bucket.slots if slot.parameter.requires_grad]
            if not there.issuperset(trained):  # a backward may read it all the same: to the end
                unit.uses += 1
        return there

    def finish(self) -> None:
        super().finish()
        self.shards.order.end()
        self._free()

    def abandon(self) -> None:
        super().abandon()
        self.shards.order.end()
        for unit in self.shards.units:
            unit.give_up()
        self._free()

    def waiting(self, what: str) -> AbstractContextManager:
        return self.shards.together.waiting(what)

    def mark(self) -> list[int]:
        return self.shards.together.mark()

    def compare(self, most: list[int]) -> None:
        self.shards.together.compare(most)

    def _free(self) -> None:
        for unit in self.shards.units:  # those without a gradient, and those asked for in vain
            unit.forget()
            unit.free()
