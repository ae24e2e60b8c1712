"""Stage 3 as a whole: the units of a model, what the optimizer updates of them, their gradients.

Gradients are those of stage 2, sent unit by unit; a unit whose gradient has left is freed. Lesson
11 derives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from course_lib.collectives import broadcast
from course_lib.collectives.call import Group
from course_lib.collectives.transport import Handle
from course_lib.zero.partition import Bucket, Partition, Slot, end_to_end
from course_lib.zero.shards import Copies, parts_of
from course_lib.zero.stage2 import ShardGradients
from course_lib.zero.stage3.build import Fill, value
from course_lib.zero.stage3.hooks import Hooks
from course_lib.zero.stage3.prefetch import Order
from course_lib.zero.stage3.together import Together
from course_lib.zero.stage3.units import Unit, choose_units

if TYPE_CHECKING:
    from course_lib.zero.offload import FileHome, HostHome

PERSIST = 1 << 16  # bytes: a parameter that is smaller costs less kept than sent


class UnitShards(Copies):
    """The units of a model, and this rank's shard of each."""

    @torch.no_grad()
    def __init__(
        self,
        model: nn.Module,
        group: Group,
        *,
        units: Sequence[nn.Module] | None = None,
        master: bool = False,
        prefetch: int = 1,
        keep: int = 0,
        persist: int = PERSIST,
        fill: Fill | None = None,
        home: HostHome | FileHome | None = None,
    ):
        self.group, self.master, self.home = group, master, home
        self.copied = master if home is None else home.copied
        self.together = Together(group)
        self.order = Order(prefetch, self.together)
        self.units = list(_units(model, self.together, units, persist, home))
        self.of = {slot.parameter: unit for unit in self.units for slot in unit.bucket.slots}
        self.own = [[] for _ in self.units]
        self._fill(model, fill)
        self.partition = Partition([u.bucket for u in reversed(self.units)], group.size())
        self.hooks = Hooks(model, self.units, self.order, keep=keep)

    def memory(self) -> list[Tensor]:
        return [*super().memory(), *(x for unit in self.units for x in (unit.shard, unit.buffer))]

    def _fill(self, model: nn.Module, fill: Fill | None) -> None:
        """Take this rank's shard of every parameter, in the model's order, and let the rest go."""
        for name, p in model.named_parameters():
            if p in self.of:
                unit = self.of[p]
                slot = next(s for s in unit.bucket.slots if s.parameter is p)
                unit.keep_own(slot, value(name, p, fill))
                unit.promise(slot)
                if not unit.missing:
                    self._settle(unit)
        if self.home is not None:
            self.home.ready()
        for unit in self.units:
            if unit.persistent:
                unit.gather()

    def _settle(self, unit: Unit) -> None:
        """Its shard is filled: make the parts of it, and let it go where it is to lie."""
        i, pieces = len(self.units) - 1 - self.units.index(unit), unit.bucket.pieces
        where = (unit.store,) if self.home is not None else ()
        self.own[i] = parts_of(
            i, pieces(self.group.rank()), unit.shard, self.master, self.home, *where
        )
        if unit.store is not None:
            unit.shard = unit.store.settled(unit.shard)

    @torch.no_grad()
    def gather(self) -> None:
        """After the update: what is kept is made whole anew, all else when it is used."""
        for unit, own in zip(reversed(self.units), self.own, strict=True):
            if self.copied:
                for piece, part in own:
                    piece.of(unit.shard).copy_(part, non_blocking=True)
            unit.renew()
        for unit in self.units:
            if unit.persistent or unit.pinned:
                unit.gather()

    @contextmanager
    def gathered(self, *what: nn.Module | nn.Parameter, write: bool = False) -> Iterator[None]:
        """Have these parameters whole in here, on all ranks; with `write`, what rank 0 of the group
        has changed is every rank's afterwards."""
        parameters = [
            p for one in what for p in (one.parameters() if isinstance(one, nn.Module) else [one])
        ]
        lost = [tuple(p.shape) for p in parameters if p not in self.of and p.numel()]
        if lost:
            raise ValueError(f"{len(lost)} parameters belong to no unit of this engine: {lost[:4]}")
        units = list(dict.fromkeys(self.of[p] for p in parameters if p in self.of))
        mine = [unit for unit in units if not unit.whole]
        for unit in units:
            unit.gather()
            unit.pinned += 1
        try:
            yield
        finally:
            for unit in units:
                unit.pinned -= 1
                if write:
                    self._write_back(unit)
            for unit in mine:
                unit.free()

    @torch.no_grad()
    def _write_back(self, unit: Unit) -> None:
        buffer = broadcast(unit.buffer, self.group)
        unit.buffer.copy_(buffer)
        shard = unit.bucket.shard(buffer, self.group.rank())
        if unit.shard.numel():  # else it is in a file
            unit.shard.copy_(shard)
        i = len(self.units) - 1 - self.units.index(unit)
        if self.home is not None:
            self.home.rewritten(i, self.own[i], shard)
        elif self.master:
            for piece, part in self.own[i]:
                part.copy_(piece.of(shard))


class UnitGradients(ShardGradients):
    """Stage 2's gradients, in buckets that are units; one is freed once its gradient has left."""

    def __init__(self, partition: Partition, group: Group, shards: UnitShards):
        super().__init__(partition, group, shards)

    def _take(self, i: int, slot: Slot) -> None:
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


def _units(model, together, chosen, persist, home) -> Iterator[Unit]:
    n = together.group.size()

    def store():
        return None if home is None else home.store()

    # First comes what is kept, of all modules: gradients are sent from the last unit to the first,
    # and some of these are the last to come.
    chosen = choose_units(model, chosen)
    small = [one for _, _, named in chosen for one in named if _bytes(one[1]) < persist]
    for slots in end_to_end(small):
        unit = Unit("what is kept", model, Bucket(slots, n), together, store())
        unit.persistent = True
        yield unit
    for name, module, named in chosen:
        for slots in end_to_end(one for one in named if _bytes(one[1]) >= persist):
            yield Unit(name, module, Bucket(slots, n), together, store())


def _bytes(p: nn.Parameter) -> int:
    return p.numel() * p.element_size()
