"""Where the numbers of a bucket lie in its file, and in the memory that they are read into.

First what the optimizer updates, then its states one after another, then the parameters in 16 bits
where those live in files too: a step reads and writes one range. Lesson 12 counts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from course_lib.zero.offload.files import aligned


@dataclass(frozen=True)
class Layout:
    """`count` numbers of `dtype`, as many of each state, and of `half` if there is one. Every part
    begins at a multiple of 4096 bytes."""

    count: int
    dtype: torch.dtype
    states: Mapping[str, torch.dtype] = field(default_factory=dict)
    half: torch.dtype | None = None

    @property
    def values_bytes(self) -> int:
        return aligned(self.count * self.dtype.itemsize)

    @property
    def kept_bytes(self) -> int:
        """What a step has to read: values and states."""
        return self.values_bytes + sum(
            aligned(self.count * dtype.itemsize) for dtype in self.states.values()
        )

    @property
    def half_bytes(self) -> int:
        return 0 if self.half is None else aligned(self.count * self.half.itemsize)

    @property
    def nbytes(self) -> int:
        """All of it, which a step writes."""
        return self.kept_bytes + self.half_bytes

    def values(self, memory: Tensor) -> Tensor:
        return self._at(memory, 0, self.dtype)

    def state(self, memory: Tensor, name: str) -> Tensor:
        first = self.values_bytes
        for one, dtype in self.states.items():
            if one == name:
                return self._at(memory, first, dtype)
            first += aligned(self.count * dtype.itemsize)
        raise KeyError(name)

    def halves(self, memory: Tensor) -> Tensor:
        return self._at(memory, self.kept_bytes, self.half)

    def _at(self, memory: Tensor, first: int, dtype: torch.dtype) -> Tensor:
        return memory[first : first + self.count * dtype.itemsize].view(dtype)
