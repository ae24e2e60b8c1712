"""The hooks that gather a unit before its module's forward pass and before its backward pass.

A parameter that a module of a different unit also uses, such as a tied head's, is gathered for that
module too. A trained weight is no longer needed when its gradient has arrived. A frozen weight gets
no gradient, so its unit stays gathered until all inputs of the module have their gradients.
Lesson 11 derives it.
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
UNREAD = (nn.Embedding, VocabularyParallelEmbedding)  # their backward reads no weight


class Hooks:
    """The hooks that gather and free, registered on the modules of the units."""

    def __init__(self, model: nn.Module, units: Sequence[Unit], order: Order, *, keep: int = 0):
        self.units, self.order, self.keep = list(units), order, keep
        self.leaves_views = True  # views of weights that an evaluation has saved stay valid
        self._uses: dict[nn.Module, list[Use]] = {}  # of calls that have not returned
        # torch.compile leaves these hooks out, because it would trace messages and changing memory
        # into its graphs. A unit's own forward is compiled.
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
                self._uses.clear()  # of a forward that failed

        return begin

    def _before(self, own: nn.Module, needs: list[Unit]):
        def before(module: nn.Module, inputs: tuple, named: dict) -> None:
            if module is not own:  # a deep copy shares the hooks, but not the weights
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
            # A recomputation, whose backward follows at once, or a deep copy.
            if in_backward() or module is not own:
                return output
            use = self._uses[module].pop()
            output = with_own_memory(output, [unit for unit in needs if not unit.persistent])
            tensors = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
            for x in tensors:
                x.register_hook(self._before_backward(module, needs, use, readers_of(x)))
            # For an object that hides its tensors, the needs of its backward are unknown.
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
        """Return True if the unit may stay gathered until its backward pass."""
        others = sum(u.nbytes for u in self.units if u.whole and not u.persistent and u is not unit)
        return others + unit.nbytes <= self.keep

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def users(model: nn.Module, units: Sequence[Unit]) -> dict[nn.Module, list[Unit]]:
    """Return the modules whose forward needs units, with those units: each unit's own module, and
    every other module that has one of its parameters."""
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
    """Return an output with clones in place of views of weights, whose memory will be freed."""
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
    """One call of a module, tracked in the backward pass for its partly frozen units.

    It begins with a gradient of the call's outputs and ends when its inputs have their gradients.
    If no input requires a gradient, it ends with the last gradient of a trained weight.
    """

    def __init__(self, needs: Sequence[Unit], given: object):
        self.units = [unit for unit in needs if unit.frozen]
        self.places: list[int] = []  # in the order of the forward pass
        self._begun, leaves = False, tree_leaves(given)
        wanting = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
        # A hidden tensor may require a gradient, whose arrival cannot be observed. Next to a
        # tensor, it counts as an object that modules pass on, such as a cache of keys and values.
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
        """Note that an input has its gradient."""
        self._left -= 1
        if self._left:
            return
        self._left = self._all  # for a second backward through the same graph
        if self._begun:
            self._begun = False
            for unit in self.units:
                unit.uses -= 1
                unit.free_if_done()


def readers_of(x: Tensor) -> list[Use]:
    """Return a list for the calls that take x, only for the first module that returns x. The calls
    end before that module's backward begins, so one unit is freed before the next is gathered."""
    if hasattr(x, "readers"):
        return []
    x.readers = []
    return x.readers


def shows(leaf: object) -> bool:
    """Return True if this part of an input or output hides no tensors."""
    return leaf is None or isinstance(leaf, PLAIN)
