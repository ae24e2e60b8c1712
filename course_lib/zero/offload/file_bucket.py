"""A bucket whose values are in a file, and its connection to the optimizer while in memory.

The bucket's parameters are placeholders without memory, except in a block in which they hold the
file's values. Only then do its states exist in memory. The user's optimizer, with its groups, rates
and schedulers, is lent one bucket's parts at a time. Lesson 12.
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

IN_FILE = object()  # placeholder for a state whose values are in the file


@dataclass
class FileBucket:
    """A bucket's file, and its part in memory: placeholders of its parts, and small states.

    `shard` is the destination of an update's values, or None if units read them from the file.
    `shown` has the values from which the next update starts, if the model may have been changed.
    """

    layout: FileLayout
    file: File
    own: Own
    outline: Tensor  # (1,), expanded to a part that is not in memory
    small: list[dict[str, object]] = field(default_factory=list)  # for each part
    shard: Tensor | None = None
    shown: Tensor | None = None

    def __post_init__(self) -> None:
        self.small = [{} for _ in self.own]

    @contextmanager
    def lent(self, memory: Tensor, state: MutableMapping, *, write: bool) -> Iterator[None]:
        """Place the parts and their states (in an optimizer's `state`) in `memory`, where the file
        was read. With `write`, their new values are copied there at the end."""
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
        """Copy values and states to `memory`, keep small states, update shown values."""
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
        """Return the states of each part; states in the file are on torch's meta device."""
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
    """Return the states that are too small for a file."""
    small = (x for kept in every for some in kept.small for x in some.values())
    return [x for x in small if isinstance(x, Tensor)]


def _without_numbers(numel: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(numel, dtype=dtype, device="meta")


def _bring(x: Tensor, place: Tensor) -> None:
    """Copy x's values to `place`, unless they are there already."""
    if begins_at(x) != begins_at(place):
        place.copy_(x)


def check_lendable(optimizer: Optimizer) -> None:
    """Raise for an optimizer that may count its own steps or use all parameters together."""
    if not is_known(optimizer):
        raise ValueError(
            f"offload to files passes {type(optimizer).__name__} one bucket of a step after the "
            "other and must know its states, which only works for torch's own elementwise "
            "optimizers. Use SGD, Adam or AdamW, or offload='cpu'"
        )


def lend(
    optimizer: Optimizer, parts: Container[nn.Parameter], *, first: bool = True, last: bool = True
) -> None:
    """Step while the optimizer's groups hold only these parts. Hooks registered on its step run
    once, before the first and after the last bucket."""
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
