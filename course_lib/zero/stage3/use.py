"""How long a module reads its weights in the backward, where no gradient of theirs tells.

A trained weight has been read for the last time when its gradient is there. A frozen one has none:
its unit stays whole until the gradient has reached all that the module was given. Lesson 11.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from course_lib.zero.stage3.units import Unit

PLAIN = (Tensor, int, float, complex, str, bytes, torch.dtype, torch.device)


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
