"""What a PyTorch user looks for on a module, on an engine: train, eval, parameters, state_dict.

It shows the engine's model under these names. A state_dict is whole, on every rank, at every stage,
and goes into an engine of any other: one unit is whole at a time, and what is loaded is looked at
on all ranks before a weight changes on any. Lesson 11 opens the block that both need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from course_lib.collectives import all_reduce
from course_lib.collectives.agreement import checksum
from course_lib.collectives.call import Group, computes_on, device_of, labelled
from course_lib.zero.refusals import who_has


class ModuleInterface:
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

    @torch.no_grad()
    def state_dict(self, *, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Whole copies of the model's weights and buffers, on every rank, also after `close`; all
        ranks call it. One unit at a time is whole on the device."""
        state: dict[str, object] = {}
        copies: dict[int, Tensor] = {}
        for names, whole in self._blocks():
            with whole:
                own = self.model.state_dict(keep_vars=True)
                for name in names:
                    x = own[name]
                    if isinstance(x, Tensor):  # tied weights stay one tensor
                        x = copies.setdefault(id(x), x.detach().to(device, copy=True))
                    state[name] = x
        return {name: state[name] for name in self.model.state_dict(keep_vars=True)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Write whole weights and buffers into the model, at any moment, the same on all ranks; or
        raise on all of them."""
        shapes = {id(slot.parameter): slot.shape for slot in self.partition.slots()}
        entries = self.model.state_dict(keep_vars=True).items()
        expected = {name: shapes.get(id(x), getattr(x, "shape", None)) for name, x in entries}
        check_same(_faults(expected, state), state, self.group, self.groups)
        for names, whole in self._blocks():
            with whole:
                places = self.model.state_dict(keep_vars=True)
                for name in names:
                    if isinstance(places[name], Tensor):
                        places[name].copy_(state[name])

    def _blocks(self) -> Iterator[tuple[list[str], AbstractContextManager]]:
        """The state_dict's names, unit by unit, each with a block in which their tensors are whole;
        at last those that every rank has whole anyway."""
        rest = dict(self.model.state_dict(keep_vars=True))
        for unit in self.shards.units if self.stage == 3 else []:
            own = {id(slot.parameter) for slot in unit.bucket.slots}
            names = [name for name, x in rest.items() if id(x) in own]
            parameters = list(dict.fromkeys(rest.pop(name) for name in names))
            if names:
                yield names, self.gathered(*parameters)
        yield list(rest), nullcontext()

    def __enter__(self):
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _faults(expected: Mapping[str, torch.Size | None], state: Mapping[str, Tensor]) -> list[str]:
    """What of a state_dict does not fit the model's, in words."""
    faults = [f"{name} is missing" for name in expected if name not in state]
    faults += [f"{name} is not the model's" for name in state if name not in expected]
    for name, shape in expected.items():
        there = getattr(state.get(name), "shape", None)
        if name in state and there != shape:
            faults.append(f"{name} is of shape {_words(there)}, and the model's of {_words(shape)}")
    return faults


def _words(shape: torch.Size | None) -> str:
    return "no tensor" if shape is None else str(tuple(shape))


def check_same(
    faults: list[str], state: Mapping[str, Tensor], dp: Group, groups: Sequence[Group]
) -> None:
    """Refuse, on all ranks, a state_dict that is at fault on any, or not the same all over dp."""
    device = device_of(*groups)
    digest = torch.zeros(2, dtype=torch.int64, device=device)
    for number, name in enumerate(sorted(state)):
        if isinstance(state[name], Tensor) and not faults and computes_on(dp).type != "meta":
            digest += checksum(state[name]).to(device) * (2 * number + 1)
    with labelled("scalars"):
        # The maxima of a number and of its opposite are opposites where all ranks have the same.
        most, least = all_reduce(torch.stack((digest, -digest)), dp, "max")
        bad = torch.stack(((most != -least).any(), torch.tensor(bool(faults), device=device)))
        bad = bad.to(torch.uint8)
        for group in groups:
            bad = all_reduce(bad, group, "max")
    differ, at_fault = bad.tolist()
    if at_fault:
        raise ValueError(f"load_state_dict: nothing was loaded: {who_has(faults, groups)}")
    if differ:
        raise ValueError(
            "load_state_dict: nothing was loaded: the ranks were given different weights. Give all "
            "of them the same, read from one file, or broadcast from one rank"
        )
