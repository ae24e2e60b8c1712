"""The layout of a bucket's values in its file, and in the memory into which they are read.

The values that the optimizer updates are first, then its states, then the parameters in 16 bits if
they are in files too, so a step reads and writes one range. Lesson 12 counts the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from course_lib.zero.offload.files import aligned


@dataclass(frozen=True)
class FileLayout:
    """`count` elements of `dtype`, as many of `half` if set, and each state of the trained
    elements. Every part begins at a multiple of 4096 bytes.

    `spans` lists for each state the stretches of the shard that have it, in order, from start to
    stop; by default, all elements do. A frozen parameter has no state and no room for one.
    """

    count: int
    dtype: torch.dtype
    states: Mapping[str, torch.dtype] = field(default_factory=dict)
    half: torch.dtype | None = None
    spans: Mapping[str, Sequence[tuple[int, int]]] | None = None

    @property
    def values_bytes(self) -> int:
        return aligned(self.count * self.dtype.itemsize)

    @property
    def kept_bytes(self) -> int:
        """The bytes that a step must read: values and states."""
        return self.values_bytes + sum(
            aligned(self.length(name) * dtype.itemsize) for name, dtype in self.states.items()
        )

    def length(self, name: str) -> int:
        """Count the elements that have this state."""
        return sum(stop - start for start, stop in self._spans(name))

    @property
    def half_bytes(self) -> int:
        return 0 if self.half is None else aligned(self.count * self.half.itemsize)

    @property
    def nbytes(self) -> int:
        """The full size, which a step writes."""
        return self.kept_bytes + self.half_bytes

    def values(self, memory: Tensor) -> Tensor:
        return self._at(memory, 0, self.dtype, self.count)

    def state(self, memory: Tensor, name: str) -> Tensor:
        first = self.values_bytes
        for one, dtype in self.states.items():
            if one == name:
                return self._at(memory, first, dtype, self.length(name))
            first += aligned(self.length(one) * dtype.itemsize)
        raise KeyError(name)

    def state_of(self, memory: Tensor, name: str, start: int, stop: int) -> Tensor:
        """Return a state of the shard's elements `start` to `stop`, which are one of its spans."""
        before = sum(b - a for a, b in self._spans(name) if b <= start)
        return self.state(memory, name)[before : before + stop - start]

    def has(self, name: str, start: int, stop: int) -> bool:
        """Return True if the file has this state for these elements of the shard."""
        if name not in self.states:
            return False
        return any(a <= start and stop <= b for a, b in self._spans(name))

    def _spans(self, name: str) -> Sequence[tuple[int, int]]:
        return ((0, self.count),) if self.spans is None else self.spans[name]

    def halves(self, memory: Tensor) -> Tensor:
        return self._at(memory, self.kept_bytes, self.half, self.count)

    def _at(self, memory: Tensor, first: int, dtype: torch.dtype, count: int) -> Tensor:
        return memory[first : first + count * dtype.itemsize].view(dtype)
