"""When a unit is needed: before its module's forward, and before its backward.

A parameter that a module of another unit uses too, such as a tied head's, is brought for that one
as well. Lesson 11 derives it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from course_lib.tensor_parallel.embedding import VocabularyParallelEmbedding
from course_lib.zero.stage3.prefetch import Order
from course_lib.zero.stage3.units import Unit
from course_lib.zero.stage3.use import Use, readers_of, shows

UNREAD = (nn.Embedding, VocabularyParallelEmbedding)  # their backward looks at no weight


class Hooks:
    """The calls that gather and free, laid on the modules of the units."""

    def __init__(self, model: nn.Module, units: Sequence[Unit], order: Order, *, keep: int = 0):
        self.units, self.order, self.keep = list(units), order, keep
        self._uses: dict[nn.Module, list[Use]] = {}  # of calls that have not come back
        self._hooks = [model.register_forward_pre_hook(self._begin)]
        for module, needs in users(model, units).items():
            self._hooks += [
                module.register_forward_pre_hook(self._before(needs), with_kwargs=True),
                module.register_forward_hook(self._after(needs), always_call=False),
            ]

    def _begin(self, module: nn.Module, inputs: tuple) -> None:
        if not in_backward():
            self.order.begin()
            self._uses.clear()  # of one that broke off

    def _before(self, needs: list[Unit]):
        def before(module: nn.Module, inputs: tuple, named: dict) -> None:
            if not in_backward():
                given = (inputs, named) if torch.is_grad_enabled() else ()
                self._uses.setdefault(module, []).append(Use(needs, given))
            for unit in needs:
                if not in_backward():
                    self.order.used(unit)
                unit.start()
                if not in_backward():
                    self.order.ahead()
                unit.gather()

        return before

    def _after(self, needs: list[Unit]):
        def after(module: nn.Module, inputs: tuple, output: object) -> None:
            if in_backward():  # run again for the backward, which follows at once
                return
            use = self._uses[module].pop()
            tensors = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
            for x in tensors:
                x.register_hook(self._before_backward(module, needs, use, readers_of(x)))
            # What a backward will ask of an object that hides its tensors, nobody is told.
            hidden = torch.is_grad_enabled() and not all(map(shows, tree_leaves(output)))
            for unit in needs:
                stays = tensors and (self.order.ends_with(unit) or self._fits(unit))
                if not (stays or hidden):
                    unit.free()

        return after

    def _before_backward(self, module: nn.Module, needs: list[Unit], use: Use, readers: list[Use]):
        def before(grad: Tensor) -> None:
            for one in readers:
                one.reached(grad)
            use.begin()
            for unit in needs:
                if isinstance(module, UNREAD) and unit.module is module:
                    unit.outline()
                    continue
                unit.start()
                self.order.back(unit)
                unit.gather()

        return before

    def _fits(self, unit: Unit) -> bool:
        """Whether it may stay whole until its backward."""
        others = sum(u.nbytes for u in self.units if u.whole and not u.persistent and u is not unit)
        return others + unit.nbytes <= self.keep

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def users(model: nn.Module, units: Sequence[Unit]) -> dict[nn.Module, list[Unit]]:
    """The modules before whose forward units have to come, with those units: each unit's own
    module, and every module elsewhere that has one of its parameters."""
    found: dict[nn.Module, list[Unit]] = {}
    for unit in units:
        mine = {slot.parameter for slot in unit.bucket.slots}
        inside = set(unit.module.modules())
        found.setdefault(unit.module, []).append(unit)
        for module in model.modules():
            if module not in inside and any(p in mine for p in module.parameters(recurse=False)):
                found.setdefault(module, []).append(unit)
    return found


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
