"""What a forward really keeps for its backward: the tensors that autograd saves, while it does.

Parameters are saved too, and not counted: they are there anyway. Appendix E4 counts with it how
many micro-batches a pipeline stage has in memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.meta import memory_key


class Saved:
    """One tensor that a graph holds; it goes when the graph lets go of it."""

    def __init__(self, tensor: Tensor, micro: int):
        self.tensor, self.micro = tensor, micro


class Kept:
    """Counts the tensors that autograd saves in `of(micro)`, and what of them is still held."""

    def __init__(self, parameters: Iterable[nn.Parameter]):
        self._parameters = {memory_key(p.untyped_storage()) for p in parameters}
        self._saved: weakref.WeakSet[Saved] = weakref.WeakSet()
        self.most_bytes = 0
        self.most_micros = 0

    @contextmanager
    def of(self, micro: int) -> Iterator[None]:
        """A forward of this micro-batch runs in here."""

        def pack(tensor: Tensor) -> Saved:
            saved = Saved(tensor, micro)
            if memory_key(tensor.untyped_storage()) not in self._parameters:
                self._saved.add(saved)
            return saved

        with saved_tensors_hooks(pack, lambda saved: saved.tensor):
            yield
        self.most_bytes = max(self.most_bytes, self.bytes())
        self.most_micros = max(self.most_micros, len(self.micros()))

    def micros(self) -> set[int]:
        """The micro-batches of which something is held."""
        return {saved.micro for saved in self._saved}

    def bytes(self) -> int:
        """Of the distinct storages that are held now."""
        storages = (saved.tensor.untyped_storage() for saved in self._saved)
        return sum({memory_key(storage): storage.nbytes() for storage in storages}.values())
