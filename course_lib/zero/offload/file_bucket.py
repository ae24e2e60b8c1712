"""A bucket whose numbers a file has, and how the optimizer finds them while they are in memory.

The bucket's parameters are outlines, without memory of their own, but for a block in which they
show what was read; the states come and go with them. The one optimizer is lent the parts of one
bucket at a time, and stays the user's: its groups, their rates and its schedulers. Lesson 12.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.meta import begins_at
from course_lib.zero.offload.file_layout import FileLayout
from course_lib.zero.offload.files import File
from course_lib.zero.optimizer_home import Own
from course_lib.zero.optimizer_parts import as_large, is_known
from course_lib.zero.outside_changes import take_over
from course_lib.zero.partition import BucketPiece

IN_FILE = object()  # stands for a state whose numbers the file has


@dataclass
class FileBucket:
    """A bucket's file, and what stays in memory: its parts as outlines, their small states.

    `shard` is where an update's values go, None where units read them from the file; `shown` is
    what the next update starts from, where the model may have been written to.
    """

    layout: FileLayout
    file: File
    own: Own
    outline: Tensor  # (1,): all elements of a part that is not in memory
    small: list[dict[str, object]] = field(default_factory=list)  # of each part
    shard: Tensor | None = None
    shown: Tensor | None = None

    def __post_init__(self) -> None:
        self.small = [{} for _ in self.own]

    @contextmanager
    def lent(self, memory: Tensor, state: MutableMapping, *, write: bool) -> Iterator[None]:
        """A block in which the parts and their states, in an optimizer's `state`, lie in `memory`,
        where the file was read; with `write`, what they have become is brought there."""
        values = self.layout.values(memory)
        try:
            for (piece, part), small in zip(self.own, self.small, strict=True):
                part.data = piece.of(values)
                if small:
                    state[part] = {
                        name: self._state(memory, name, piece) if x is IN_FILE else x
                        for name, x in small.items()
                    }
            if self.shown is not None:
                take_over([(values, self.shown)])
            yield
            if write:
                self._bring_back(memory, state)
                self.shown = None
        finally:
            for _, part in self.own:
                state.pop(part, None)
                part.data = self.outline.expand(part.numel())

    def _bring_back(self, memory: Tensor, state: MutableMapping) -> None:
        """Values and states into `memory`, small states beside it, values to where they show."""
        layout, values = self.layout, self.layout.values(memory)
        for number, (piece, part) in enumerate(self.own):
            _bring(part, piece.of(values))
            new = state.pop(part, {})
            for name, x in new.items():
                in_file = layout.has(name, piece.at, piece.at + piece.numel)
                if in_file and as_large(x, part):
                    _bring(x, self._state(memory, name, piece))
                    new[name] = IN_FILE
            self.small[number] = new
        if layout.half is not None:
            layout.halves(memory).copy_(values)
        elif self.shard is not None:
            self.shard.copy_(values)

    def outlines(self) -> list[Mapping[str, object]]:
        """The states of each part; those that the file has are on torch's meta device."""
        return [
            {
                name: _without_numbers(piece.numel, self.layout.states[name]) if x is IN_FILE else x
                for name, x in small.items()
            }
            for (piece, _), small in zip(self.own, self.small, strict=True)
        ]

    def _state(self, memory: Tensor, name: str, piece: BucketPiece) -> Tensor:
        return self.layout.state_of(memory, name, piece.at, piece.at + piece.numel)


def in_memory(every: Sequence[FileBucket]) -> list[Tensor]:
    """The states that are too small for a file."""
    small = (x for kept in every for some in kept.small for x in some.values())
    return [x for x in small if isinstance(x, Tensor)]


def _without_numbers(numel: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(numel, dtype=dtype, device="meta")


def _bring(x: Tensor, place: Tensor) -> None:
    """Have x's numbers in `place`, where they are mostly already."""
    if begins_at(x) != begins_at(place):
        place.copy_(x)


def check_lendable(optimizer: Optimizer) -> None:
    """Refuse an optimizer that may count its own steps, or look at all parameters together."""
    if not is_known(optimizer):
        raise ValueError(
            f"offload to files lends {type(optimizer).__name__} one bucket of a step after another "
            "and has to know its states, which is right for torch's own elementwise optimizers: "
            "use SGD, Adam or AdamW, or offload='cpu'"
        )


def lend(
    optimizer: Optimizer, parts: Container[nn.Parameter], *, first: bool = True, last: bool = True
) -> None:
    """Step while the optimizer's groups hold these parts and no others; hooks that were laid on its
    step run once, before the first and after the last bucket."""
    every = [group["params"] for group in optimizer.param_groups]
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    try:
        for group in optimizer.param_groups:
            group["params"] = [part for part in group["params"] if part in parts]
        if not first:
            optimizer._optimizer_step_pre_hooks = OrderedDict()
        if not last:
            optimizer._optimizer_step_post_hooks = OrderedDict()
        optimizer.step()
    finally:
        for group, own in zip(optimizer.param_groups, every, strict=True):
            group["params"] = own
        optimizer._optimizer_step_pre_hooks = before
        optimizer._optimizer_step_post_hooks = after
