"""What a PyTorch user looks for on a module, on an engine: train, eval, parameters, state_dict.

It shows the engine's model under these names; a state_dict is whole on every rank at every stage,
and goes into an engine of any other. Lesson 11 opens the block that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from course_lib.zero.state_dicts import Block, blocks_of, load_state_dict, state_dict


class ModuleFace:
    """The names of `torch.nn.Module`, for what has a model, a partition, shards and `gathered`."""

    @property
    def module(self) -> nn.Module:
        return self.model

    @property
    def training(self) -> bool:
        return self.model.training

    def train(self, mode: bool = True):
        self.model.train(mode)
        return self

    def eval(self):
        return self.train(False)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The model's; at stage 3 they are placeholders outside of `gathered`."""
        return self.model.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.model.named_parameters()

    def gathered(
        self, *what: nn.Module | nn.Parameter, write: bool = False
    ) -> AbstractContextManager:
        """Have these parameters whole in here, on all ranks alike, also after `close`. What all
        have written alike is kept; with `write`, what the group's first rank has written."""
        self._sound()
        if self.stage == 3:
            return self.shards.gathered(*what, write=write)
        if write:
            raise ValueError("write= is of stage 3; here the model is whole, write to it directly")
        return nullcontext()

    def state_dict(self, *, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Whole copies of the model's weights and buffers, on every rank, also after `close`; all
        ranks call it. One unit at a time is whole on the device."""
        return state_dict(self.model, self._blocks(), device)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Write whole weights and buffers into the model, at any moment, the same on all ranks."""
        slots = list(self.partition.slots())
        load_state_dict(self.model, self._blocks(), slots, state, self.group, self.groups)

    def _blocks(self) -> Iterator[Block]:
        units = self.shards.units if self.stage == 3 else []
        return blocks_of(self.model, units, self.gathered)
