"""The interface of a PyTorch module for an engine: train, eval, parameters, state_dict.

It exposes the engine's model under these names. A state_dict is complete on every rank at every
stage, and loads into an engine of any stage. Only one unit is gathered at a time. Loading checks
the state on all ranks before any weight changes. Both use `gathered`, see lesson 11.
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
    """The names of `torch.nn.Module`, for a class with model, partition, shards and `gathered`."""

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
        """Return the model's parameters, which at stage 3 are placeholders outside `gathered`."""
        return self.model.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.model.named_parameters()

    def gathered(
        self, *what: nn.Module | nn.Parameter, write: bool = False
    ) -> AbstractContextManager:
        """Gather these parameters for the block, on all ranks together, even after `close`. Changes
        that all ranks make are kept or, with `write`, the changes of the group's first rank."""
        self._sound()
        if self.stage == 3:
            return self.shards.gathered(*what, write=write)
        if write:
            raise ValueError("write= needs stage 3; at this stage, write to the model directly")
        return nullcontext()

    @torch.no_grad()
    def state_dict(self, *, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Copy the model's full weights and buffers, on every rank, even after `close`; all ranks
        call it. Only one unit at a time is gathered on the device."""
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
        """Write full weights and buffers, the same on all ranks, into the model at any time, or
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
        """Yield the state_dict's names, unit by unit, each with a context that gathers their
        tensors; replicated tensors come last."""
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
    """Describe the entries of a state_dict that do not match the model's."""
    faults = [f"{name} is missing" for name in expected if name not in state]
    faults += [f"{name} is not the model's" for name in state if name not in expected]
    for name, shape in expected.items():
        there = getattr(state.get(name), "shape", None)
        if name in state and there != shape:
            faults.append(f"{name} is of shape {_words(there)}, but the model's of {_words(shape)}")
    return faults


def _words(shape: torch.Size | None) -> str:
    return "no tensor" if shape is None else str(tuple(shape))


def check_same(
    faults: list[str], state: Mapping[str, Tensor], dp: Group, groups: Sequence[Group]
) -> None:
    """Raise on all ranks if a state_dict has faults on any rank, or differs over dp."""
    device = device_of(*groups)
    digest = torch.zeros(2, dtype=torch.int64, device=device)
    for number, name in enumerate(sorted(state)):
        if isinstance(state[name], Tensor) and not faults and computes_on(dp).type != "meta":
            digest += checksum(state[name]).to(device) * (2 * number + 1)
    with labelled("scalars"):
        # The maxima of a value and of its negative cancel exactly if all ranks have the same value.
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
            "load_state_dict: nothing was loaded, because the ranks got different weights. Pass "
            "the same weights on all of them, read from one file, or broadcast from one rank"
        )
