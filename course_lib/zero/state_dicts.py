"""An engine's state_dict: whole, on every rank the same, at every stage, into every other stage.

One unit is whole at a time, and its copies go to the host. What is loaded is looked at on all ranks
before a weight changes on any. Lesson 11 opens the block that both need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.collectives import all_reduce
from course_lib.collectives.agreement import checksum
from course_lib.collectives.call import Group, computes_on, device_of, labelled
from course_lib.zero.partition import Slot
from course_lib.zero.refusals import who_has


class Block(NamedTuple):
    """Names of a state_dict whose tensors are whole inside `whole`."""

    names: list[str]
    whole: AbstractContextManager


@torch.no_grad()
def state_dict(
    model: nn.Module, blocks: Iterator[Block], device: torch.device | str
) -> dict[str, Tensor]:
    """Copies, on `device`, of all that the model's state_dict has; all ranks call it."""
    state: dict[str, object] = {}
    copies: dict[int, Tensor] = {}
    for names, whole in blocks:
        with whole:
            own = model.state_dict(keep_vars=True)
            for name in names:
                x = own[name]
                if isinstance(x, Tensor):  # tied weights stay one tensor
                    x = copies.setdefault(id(x), x.detach().to(device, copy=True))
                state[name] = x
    return {name: state[name] for name in model.state_dict(keep_vars=True)}


@torch.no_grad()
def load_state_dict(
    model: nn.Module,
    blocks: Iterator[Block],
    slots: Sequence[Slot],
    state: Mapping[str, Tensor],
    dp: Group,
    groups: Sequence[Group],
) -> None:
    """Write a whole state_dict into the model, the same on all ranks, or raise on all of them."""
    shapes = {id(slot.parameter): slot.shape for slot in slots}
    own = model.state_dict(keep_vars=True)
    expected = {name: shapes.get(id(x), getattr(x, "shape", None)) for name, x in own.items()}
    check_same(_faults(expected, state), state, dp, groups)
    for names, whole in blocks:
        with whole:
            own = model.state_dict(keep_vars=True)
            for name in names:
                if isinstance(own[name], Tensor):
                    own[name].copy_(state[name])


def blocks_of(model: nn.Module, units: Sequence, gathered) -> Iterator[Block]:
    """The state_dict's names, unit by unit, and at last those that every rank has whole anyway."""
    rest = dict(model.state_dict(keep_vars=True))
    for unit in units:
        own = {id(slot.parameter) for slot in unit.bucket.slots}
        names = [name for name, x in rest.items() if id(x) in own]
        parameters = list(dict.fromkeys(rest.pop(name) for name in names))
        if names:
            yield Block(names, gathered(*parameters))
    yield Block(list(rest), nullcontext())


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
