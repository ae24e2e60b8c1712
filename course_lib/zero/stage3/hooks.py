"""When a unit is needed: before its module's forward, and before its backward.

A parameter that a module of another unit uses too, such as a tied head's, is brought for that one
as well. Lesson 11 derives it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from course_lib.tensor_parallel.embedding import VocabularyParallelEmbedding
from course_lib.zero.stage3.prefetch import Order
from course_lib.zero.stage3.units import Unit
from course_lib.zero.stage3.use import Use, readers_of, shows

UNREAD = (nn.Embedding, VocabularyParallelEmbedding)  # their backward looks at no weight


class Hooks:
    """The calls that gather and free, laid on the modules of the units."""

    def __init__(self, model: nn.Module, units: Sequence[Unit], order: Order, *, keep: int = 0):
        self.units, self.order, self.keep = list(units), order, keep
        self.leaves_views = True  # what an evaluation has put aside of the weights stays as it is
        self._uses: dict[nn.Module, list[Use]] = {}  # of calls that have not come back
        # torch.compile leaves these calls out: it would trace messages, and memory that comes and
        # goes, into its graphs. A unit's own forward is compiled.
        plain = torch.compiler.disable
        self._hooks = [model.register_forward_pre_hook(plain(self._begin(model)))]
        for module, needs in users(model, units).items():
            self._hooks += [
                module.register_forward_pre_hook(
                    plain(self._before(module, needs)), with_kwargs=True
                ),
                module.register_forward_hook(plain(self._after(module, needs)), always_call=False),
            ]

    def _begin(self, model: nn.Module):
        def begin(module: nn.Module, inputs: tuple) -> None:
            if module is model and not in_backward():
                self.order.begin()
                self._uses.clear()  # of one that broke off

        return begin

    def _before(self, own: nn.Module, needs: list[Unit]):
        def before(module: nn.Module, inputs: tuple, named: dict) -> None:
            if module is not own:  # a deep copy has the hooks too, and weights of its own
                return
            if not in_backward():
                given = (inputs, named) if torch.is_grad_enabled() else ()
                use = Use(needs, given)
                self._uses.setdefault(module, []).append(use)
            for unit in needs:
                if not in_backward():
                    use.places.append(self.order.used(unit))
                unit.start()
                if not in_backward():
                    self.order.ahead()
                unit.gather()

        return before

    def _after(self, own: nn.Module, needs: list[Unit]):
        def after(module: nn.Module, inputs: tuple, output: object) -> object:
            # Run again for the backward, which follows at once; or a deep copy.
            if in_backward() or module is not own:
                return output
            use = self._uses[module].pop()
            output = with_own_memory(output, [unit for unit in needs if not unit.persistent])
            tensors = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
            for x in tensors:
                x.register_hook(self._before_backward(module, needs, use, readers_of(x)))
            # What a backward will ask of an object that hides its tensors, nobody is told.
            hidden = torch.is_grad_enabled() and not all(map(shows, tree_leaves(output)))
            if torch.is_grad_enabled() and not (tensors or hidden):
                self.order.ends_gradient(use.places)
            for unit in needs:
                stays = tensors and (self.order.ends_with(unit) or self._fits(unit))
                if not (stays or hidden):
                    evaluated = self.leaves_views and not torch.is_grad_enabled()
                    unit.shown = unit.shown or evaluated
                    unit.free()
            return output

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


def with_own_memory(output: object, units: Sequence[Unit]) -> object:
    """What a module returns, with copies in the place of views of its weights, whose memory
    goes.
    """
    memory = {unit.buffer.untyped_storage()._cdata for unit in units if unit.whole}

    def is_view(x: object) -> bool:
        dense = isinstance(x, Tensor) and x.layout == torch.strided
        return dense and x.untyped_storage()._cdata in memory

    if not any(map(is_view, tree_leaves(output))):
        return output
    return tree_map(lambda x: x.clone() if is_view(x) else x, output)


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
