"""When a unit is needed: before its module's forward, and before its backward.

A parameter that a module of another unit uses too, such as a tied head's, is brought for that one
as well. A trained weight has been read for the last time when its gradient is there. A frozen one
has none: its unit stays whole until the gradient has reached all that the module was given. Lesson
11 derives it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from course_lib.tensor_parallel.embedding import VocabularyParallelEmbedding
from course_lib.zero.stage3.prefetch import Order
from course_lib.zero.stage3.units import Unit

PLAIN = (Tensor, int, float, complex, str, bytes, torch.dtype, torch.device)
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
    by_module: dict[nn.Module, list[Unit]] = {}
    for unit in units:
        mine = {slot.parameter for slot in unit.bucket.slots}
        inside = set(unit.module.modules())
        by_module.setdefault(unit.module, []).append(unit)
        for module in model.modules():
            if module not in inside and any(p in mine for p in module.parameters(recurse=False)):
                by_module.setdefault(module, []).append(unit)
    return by_module


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


class Use:
    """One call of a module, seen from its backward, for those of its units that are partly frozen.

    It begins with a gradient of what the call made, and ends when what the call was given has its
    gradient. Where nothing given wants one, the last gradient of a trained weight is the end.
    """

    def __init__(self, needs: Sequence[Unit], given: object):
        self.units = [unit for unit in needs if unit.frozen]
        self.places: list[int] = []  # in the order of the forward
        self._begun, leaves = False, tree_leaves(given)
        wanting = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
        # What an object hides may want a gradient, and nobody is told when it comes. Beside a
        # tensor it is taken for what modules hand on, such as a cache of keys and values.
        self._all = self._left = len(wanting) or int(not all(map(shows, leaves)))
        if self.units:
            for x in wanting:
                if hasattr(x, "readers"):
                    x.readers.append(self)
                else:
                    x.register_hook(self.reached)

    def begin(self) -> None:
        if self._all and not self._begun:
            self._begun = True
            for unit in self.units:
                unit.uses += 1

    def reached(self, grad: Tensor) -> None:
        """Something that was given has its gradient."""
        self._left -= 1
        if self._left:
            return
        self._left = self._all  # for another backward through the same graph
        if self._begun:
            self._begun = False
            for unit in self.units:
                unit.uses -= 1
                unit.free_if_done()


def readers_of(x: Tensor) -> list[Use]:
    """The calls that will be given x, for the first module that makes it: they end before that one
    begins, so that one unit goes before the next comes."""
    if hasattr(x, "readers"):
        return []
    x.readers = []
    return x.readers


def shows(leaf: object) -> bool:
    """Whether a part of what a module takes or makes has no tensors but itself."""
    return leaf is None or isinstance(leaf, PLAIN)
