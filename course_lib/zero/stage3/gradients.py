"""Stage 2's gradients with units as buckets; a unit is freed when its gradients are sent.

All units are freed at the end of a backward pass, even after an error. Lesson 11 derives it.
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
    """Gradients of stage 2 with units as buckets; a unit is freed when its gradient is sent."""

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
            if not there.issuperset(trained):  # a backward may still read it, so keep it to the end
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
        for unit in self.shards.units:  # also units without a gradient or gathered in vain
            unit.forget()
            unit.free()
