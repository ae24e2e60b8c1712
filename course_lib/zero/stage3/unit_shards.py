"""Stage 3: the units of a model, and their shards for the optimizer.

Gradients are handled as in stage 2, unit by unit. A unit is freed when its gradients are sent.
Lesson 11 derives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.collectives import all_reduce, broadcast
from course_lib.collectives.call import Group, labelled
from course_lib.meta import numbers
from course_lib.zero.optimizer_home import Home, OnDevice
from course_lib.zero.partition import Bucket, Partition, end_to_end
from course_lib.zero.shards import Copies
from course_lib.zero.stage3.branch_guard import Together
from course_lib.zero.stage3.hooks import Hooks
from course_lib.zero.stage3.options import Fill, Stage3Options, value
from course_lib.zero.stage3.prefetch import Order
from course_lib.zero.stage3.unit_choice import choose_units
from course_lib.zero.stage3.units import Promise, Unit, outside_inference


class UnitShards(Copies):
    """The units of a model, and this rank's shard of each."""

    @torch.no_grad()
    def __init__(self, model: nn.Module, group: Group, home: Home, options: Stage3Options):
        self.group, self.home = group, home
        self.together = Together(group)
        self.order = Order(options.prefetch, self.together)
        self.units = list(_units(model, self.together, options, home))
        self.of = {slot.parameter: unit for unit in self.units for slot in unit.bucket.slots}
        self.own = [[] for _ in self.units]
        self._fill(model, options.fill)
        self.partition = Partition([u.bucket for u in reversed(self.units)], group.size())
        self._loads = [m.register_load_state_dict_pre_hook(_check_whole) for m in model.modules()]
        self.hooks = Hooks(model, self.units, self.order, keep=options.keep)

    def memory(self) -> list[Tensor]:
        return [*super().memory(), *(x for unit in self.units for x in (unit.shard, unit.buffer))]

    def _fill(self, model: nn.Module, fill: Fill | None) -> None:
        """Keep this rank's shard of every parameter, in the model's order, and free the rest."""
        for name, p in model.named_parameters():
            if p in self.of:
                unit = self.of[p]
                slot = next(s for s in unit.bucket.slots if s.parameter is p)
                unit.keep_own(slot, value(name, p, fill))
                unit.promise(slot)
                if not unit.missing:
                    self._settle(unit)
        self.home.ready()
        for unit in self.units:
            if unit.persistent:
                unit.gather()

    def _settle(self, unit: Unit) -> None:
        """Move a filled shard to its home, and create the optimizer's parts of it."""
        i = len(self.units) - 1 - self.units.index(unit)
        pieces = unit.bucket.pieces(self.group.rank())
        parts = self.home.keep(i, pieces, unit.shard, unit.store)
        self.own[i] = list(zip(pieces, parts, strict=True))
        if unit.store is not None:
            unit.shard = unit.store.settled(unit.shard)

    @torch.no_grad()
    def gather(self) -> None:
        """Finish an update by gathering persistent units again; others are gathered on use."""
        for unit, own in zip(reversed(self.units), self.own, strict=True):
            if self.home.copied:
                for piece, part in own:
                    piece.of(unit.shard).copy_(part, non_blocking=True)
            unit.renew()
        for unit in self.units:
            if unit.persistent or unit.pinned:
                unit.gather()

    @contextmanager
    def gathered(self, *what: nn.Module | nn.Parameter, write: bool = False) -> Iterator[None]:
        """Gather these parameters for the block, on all ranks. Changes that all ranks make are
        kept or, with `write`, the changes of the group's first rank. Views taken in the block,
        such as a state_dict's, stay valid and unchanged afterwards."""
        parameters = [
            p
            for some in what
            for p in (some.parameters() if isinstance(some, nn.Module) else [some])
        ]
        lost = [tuple(p.shape) for p in parameters if p not in self.of and p.numel()]
        if lost:
            raise ValueError(f"{len(lost)} parameters belong to no unit of this engine: {lost[:4]}")
        units = list(dict.fromkeys(self.of[p] for p in parameters if p in self.of))
        free_after = [unit for unit in units if not unit.whole]
        for unit in units:
            unit.pin()
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # the first error is raised
                self._keep(units, write)
            raise
        else:
            self._keep(units, write)
        finally:
            for unit in units:
                unit.unpin()
            for unit in free_after:
                unit.free()

    @outside_inference
    @torch.no_grad()
    def _keep(self, units: Sequence[Unit], write: bool) -> None:
        """Keep changes at the end of a `gathered` block, or raise on all ranks together."""
        if write:
            for unit in units:
                unit.now()  # moves tensors from `p.data = x` back first
                unit.buffer.copy_(broadcast(unit.buffer, self.group))
        differ = [] if write else self._differ(units)
        if differ:
            here = ", ".join(unit.name for unit in differ if unit.changed()) or "nothing"
            for unit in units:
                unit.renew()
                unit.gather()
            raise RuntimeError(
                f"rank {dist.get_rank()}: {', '.join(unit.name for unit in differ)} was changed "
                f"inside gathered(), but not in the same way on all ranks (on this one {here}). "
                "No change was kept. Make the same change on every rank, or pass write=True, which "
                "keeps the changes of the group's first rank"
            )
        with self.home.together():
            self._write_back_changed(units)

    def _write_back_changed(self, units: Sequence[Unit]) -> None:
        for unit in units:
            if unit.changed():
                self._write_back(unit)

    def _differ(self, units: Sequence[Unit]) -> list[Unit]:
        """Return the units that differ between ranks, the same list on every rank."""
        if not units or self.group.size() == 1:
            return []
        sums = torch.cat([unit.now() for unit in units])
        # The maxima of a value and of its negative cancel exactly if all ranks have the same value.
        with labelled("scalars"):
            most, least = all_reduce(torch.stack((sums, -sums)), self.group, "max", donated=True)
        same = numbers((most == -least).view(len(units), -1).all(1), [True] * len(units))
        return [unit for unit, alike in zip(units, same, strict=True) if not alike]

    @torch.no_grad()
    def take_over(self) -> None:
        """Take over changes since the last step in parameters that stay gathered."""
        self._write_back_changed([u for u in self.units if u.persistent or u.pinned])

    def _write_back(self, unit: Unit) -> None:
        """Shard a changed unit again, and update the shard and the optimizer's part."""
        unit.seen = numbers(unit.now(), [])
        shard = unit.bucket.shard(unit.buffer, self.group.rank())
        if unit.shard.numel():  # else it is in a file
            unit.shard.copy_(shard)
        i = len(self.units) - 1 - self.units.index(unit)
        self.home.rewritten(i, self.own[i], shard)

    def end(self) -> None:
        """End all updates. Shards in files move to the host's memory, from which units are gathered
        as before."""
        for unit in self.units:
            unit.end_offload()
        self.home = OnDevice()

    def leave_whole(self) -> None:
        """Restore the original model: replicated on every rank, without hooks."""
        self.hooks.remove()
        for hook in self._loads:
            hook.remove()
        for unit in self.units:
            unit.gather()
            unit.persistent, unit.shard = True, unit.shard.new_empty(0)
            for slot in unit.bucket.slots:
                del slot.parameter.promised


def _check_whole(module: nn.Module, *args) -> None:
    """Raise before a load_state_dict if any of its weights is sharded."""
    away = [p.promised for p in module.parameters() if isinstance(p, Promise)]
    if away:
        raise RuntimeError(
            f"load_state_dict: {', '.join(away[:3])}{' and others' if len(away) > 3 else ''} are "
            "sharded over the ranks at stage 3, so nothing was loaded. Use "
            "engine.load_state_dict(state), or load inside `with engine.gathered(module):`"
        )


def _units(
    model: nn.Module, together: Together, options: Stage3Options, home: Home
) -> Iterator[Unit]:
    n, persist = together.group.size(), options.persist
    # Persistent parameters of all modules come first, because gradients are sent from the last unit
    # to the first, and some of theirs arrive last.
    chosen = choose_units(model, options.units)
    small = [pair for _, _, named in chosen for pair in named if _bytes(pair[1]) < persist]
    for slots in end_to_end(small):
        unit = Unit("persistent parameters", model, Bucket(slots, n), together, home.store())
        unit.persistent = True
        yield unit
    for name, module, named in chosen:
        for slots in end_to_end(pair for pair in named if _bytes(pair[1]) >= persist):
            yield Unit(name, module, Bucket(slots, n), together, home.store())


def _bytes(p: nn.Parameter) -> int:
    return p.numel() * p.element_size()
