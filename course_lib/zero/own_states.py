"""This rank's training state as named tensors: what the optimizer updates, and its states.

A checkpoint writes them one by one and puts them back, bit for bit, where everything is cut alike.
A name says which elements of which parameter: `blocks.0.mlp.up.weight[0:128]:exp_avg`. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.collectives.agreement import by_rank, who_says
from course_lib.collectives.call import Group
from course_lib.zero.elementwise import as_large, is_known, states_of
from course_lib.zero.home import Home
from course_lib.zero.offload.together import together
from course_lib.zero.partition import Piece
from course_lib.zero.shards import Copies, Read

Slot = tuple[torch.dtype, tuple[int, ...]]
Into = Callable[[str, Tensor], bool]  # (name, place): read to that place, or say that it cannot be
VALUE = "value"
NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}  # as a tensor of no dims
KINDS = {kind.__name__: kind for kind in NUMBERS}


def slots_of(shards: Copies, home: Home, optimizer: Optimizer) -> dict[str, Slot]:
    """The names of this rank's tensors, with their dtypes and shapes; no file is read."""
    slots = {}
    for i, own in enumerate(shards.own):
        for (piece, part), state in zip(own, home.states(i, own, optimizer), strict=True):
            for name, x in entries(piece, part, state):
                slots[name] = x.dtype, tuple(x.shape)
    return slots


@torch.no_grad()
def tensors_of(shards: Copies, home: Home, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) in the order of the names; each is valid until the next is asked for."""
    shards.take_over()
    for i, own in enumerate(shards.own):
        with home.at_hand(i, own, optimizer):
            for piece, part in own:
                yield from entries(piece, part, optimizer.state.get(part, {}))


def entries(piece: Piece, part: nn.Parameter, state: Mapping) -> Iterator[tuple[str, Tensor]]:
    """A part's value and its states by their names; a state that is a number is a tensor too."""
    label = label_of(piece)
    yield f"{label}:{VALUE}", part.detach()
    for name, x in state.items():
        if isinstance(x, Tensor) and name != VALUE:
            yield f"{label}:{name}", x.detach()
        elif type(x) in NUMBERS:
            kind = type(x)
            yield (
                f"{label}:{name} ({kind.__name__})",
                torch.tensor(x, dtype=NUMBERS[kind], device="cpu"),
            )
        elif x is not None:
            raise ValueError(
                f"the optimizer keeps {name!r} for {piece.slot.name}, a {type(x).__name__}: a "
                "checkpoint takes tensors and numbers. Use one of torch's optimizers"
            )


def label_of(piece: Piece) -> str:
    return f"{piece.slot.name}[{piece.start}:{piece.stop}]"


def put(
    shards: Copies,
    home: Home,
    optimizer: Optimizer,
    groups: Sequence[Group],
    slots: Mapping[str, Slot],
    read: Callable[[str], Tensor],
    others: Read | None,
    into: Into | None,
) -> None:
    """Put values and states back, and the values into the model; all ranks call it."""
    faults = _first_fault(shards, optimizer, slots)
    reports = who_says("; ".join(faults) or None, groups)
    if reports:
        raise ValueError(f"put_own: nothing was put back: {by_rank(reports)}")
    error = None
    try:
        with torch.no_grad():
            _put_all(shards, home, optimizer, slots, read, into)
            if others is not None:
                shards.fill(others)
    except Exception as met:
        error = met
    together(error, groups, ". The states were put back in part; begin again with a new engine")
    if others is None:
        shards.gather()
    home.updated()


def _put_all(shards: Copies, home: Home, optimizer: Optimizer, slots, read, into) -> None:
    names: dict[str, list[str]] = {}
    for name in slots:
        names.setdefault(name.rpartition(":")[0], []).append(name)
    group_of = _groups(optimizer)
    shards.take_over()  # a parameter that was given other memory comes back to its place
    for i, own in enumerate(shards.own):
        with home.at_hand(i, own, optimizer, write=True), home.placed():
            for piece, part in own:
                some = {name: slots[name] for name in names[label_of(piece)]}
                _put_part(part, some, read, into, optimizer.state, group_of.get(part, {}))


def _put_part(
    part: nn.Parameter,
    slots: Mapping[str, Slot],
    read: Callable[[str], Tensor],
    into: Into | None,
    states: MutableMapping[nn.Parameter, dict],
    group: Mapping,  # empty where the part is frozen
) -> None:
    """Put a part's value and its states back; it has no others afterwards."""
    before, state = states.pop(part, {}), {}
    for name, slot in slots.items():
        key, kind = _key_and_kind(name)
        place = part.detach() if key == VALUE else before.get(key)
        if kind is None and into is not None and _takes(place, slot) and into(name, place):
            if key != VALUE:
                state[key] = place
            continue
        x = _read(name, slot, read)
        if key == VALUE:
            part.copy_(x)
        elif kind is not None:
            state[key] = kind(x.item())
        else:
            state[key] = _placed(key, x, before.get(key), part, group)
    if state:
        states[part] = state


def _takes(place: object, slot: Slot) -> bool:
    """Whether a tensor is memory of the host's that can be read into."""
    if not isinstance(place, Tensor) or not place.dim():
        return False
    return place.device.type == "cpu" and place.is_contiguous() and _slot(place) == tuple(slot)


def _read(name: str, slot: Slot, read: Callable[[str], Tensor]) -> Tensor:
    x = read(name)
    if (x.dtype, tuple(x.shape)) != (slot[0], tuple(slot[1])):
        raise ValueError(f"{name} was to be {_words(slot)}, and was read as {_words(_slot(x))}")
    return x


def _key_and_kind(name: str) -> tuple[str, type | None]:
    """(the state that a tensor is of, and, if that is a number and no tensor, which kind)."""
    key = name.rpartition(":")[2]
    for word, kind in KINDS.items():
        if key.endswith(f" ({word})"):
            return key.removesuffix(f" ({word})"), kind
    return key, None


def _placed(name: str, x: Tensor, before: object, part: nn.Parameter, group: Mapping) -> Tensor:
    """A state's numbers where the optimizer looks for them, as torch's own load_state_dict has it:
    beside the parameter, but for a count of steps."""
    if isinstance(before, Tensor) and _slot(before) == _slot(x):
        return before.copy_(x)
    if as_large(x, part) and name != "step":
        return torch.empty_like(part, dtype=x.dtype, requires_grad=False).copy_(x)
    counts = name == "step" and not (group.get("capturable") or group.get("fused"))
    return x.detach().to("cpu" if counts else part.device, copy=True)


def _first_fault(shards: Copies, optimizer: Optimizer, slots: Mapping[str, Slot]) -> list[str]:
    """In words, the first slot that does not fit this rank's; none if all fit."""
    parts = {label_of(piece): part for piece, part in shards.parts()}
    for label, part in parts.items():
        name = f"{label}:{VALUE}"
        if name not in slots:
            return [f"{name} is missing"]
        if _slot(part) != (slots[name][0], tuple(slots[name][1])):
            return [f"{name} is {_words(slots[name])}, and the engine's {_words(_slot(part))}"]
    states: dict[str, dict[str, Slot]] = {}
    for name, slot in slots.items():
        label, _, key = name.rpartition(":")
        if label not in parts:
            return [f"{name} is not among what this rank updates"]
        if key != VALUE:
            states.setdefault(label, {})[key] = slot
    # What another optimizer keeps, and from which step on, nobody knows.
    return _fault_of_states(parts, states, optimizer) if is_known(optimizer) else []


def _fault_of_states(
    parts: Mapping[str, nn.Parameter],
    states: Mapping[str, Mapping[str, Slot]],
    optimizer: Optimizer,
) -> list[str]:
    """In words, the first state that this optimizer keeps otherwise for every element."""
    group_of = _groups(optimizer)
    keeps: dict[tuple[int, torch.dtype], dict[str, torch.dtype]] = {}
    for label, some in states.items():
        part, group = parts[label], group_of[parts[label]]
        if (id(group), part.dtype) not in keeps:
            keeps[id(group), part.dtype] = states_of(optimizer, group, part.dtype)
        here = keeps[id(group), part.dtype]
        there = {
            key: dtype
            for key, (dtype, shape) in some.items()
            if key != "step" and tuple(shape) == tuple(part.shape)
        }
        for key in [*there, *here]:
            if there.get(key) != here.get(key):
                kind = type(optimizer).__name__
                return [f"{label}:{key} {_differs(there.get(key), here.get(key), kind)}"]
    return []


def _differs(there: torch.dtype | None, here: torch.dtype | None, kind: str) -> str:
    if there is None:
        return f"is missing, which this {kind} keeps for every element"
    if here is None:
        return f"is a state that this {kind} does not keep"
    return f"is {there}, and this {kind} keeps it in {here}"


def _groups(optimizer: Optimizer) -> dict[nn.Parameter, dict]:
    return {part: group for group in optimizer.param_groups for part in group["params"]}


def _slot(x: Tensor) -> Slot:
    return x.dtype, tuple(x.shape)


def _words(slot: Slot) -> str:
    return f"{str(slot[0]).removeprefix('torch.')} of shape {tuple(slot[1])}"
