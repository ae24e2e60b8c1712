"""An engine's training state as named tensors and counters, for checkpoints.

Each rank returns the parameters that it updates and their optimizer states one by one, and restores
them bit by bit under the same sharding. The model's buffers and, below stage 3, its frozen
parameters are not included, because they are in the `state_dict`. Lesson 14 writes the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.collectives.agreement import by_rank, who_says
from course_lib.zero.offload.shared_errors import together
from course_lib.zero.optimizer_parts import as_large, is_known, states_of
from course_lib.zero.partition import BucketPiece
from course_lib.zero.shards import Copies, Read

Slot = tuple[torch.dtype, tuple[int, ...]]
Into = Callable[[str, Tensor], bool]  # (name, place) -> True if it was read to that place
VALUE = "value"
NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}  # as a tensor without dims
KINDS = {kind.__name__: kind for kind in NUMBERS}
PLAIN = (bool, int, float, str, type(None))
NOT_OPTIONS = {"params", "param_names"}


class TrainingState:
    """The training state of an object with shards, a home, an optimizer and a precision."""

    def own_slots(self) -> dict[str, Slot]:
        """Return names, dtypes and shapes of the parameters that this rank updates and of their
        states: `blocks.0.mlp.up.weight[0:128]:value`, `…:exp_avg`, `…:step`. No file is read."""
        self._usable()
        slots = {}
        for i, own in enumerate(self.shards.own):
            states = self.home.states(i, own, self.optimizer)
            for (piece, part), state in zip(own, states, strict=True):
                slots |= {name: _slot(x) for name, x in entries(piece, part, state)}
        return slots

    def own_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) in the order of `own_slots`, between two steps. Each tensor is valid
        until the next one. Changes made to the model since the last step are included."""
        self._usable()
        if self._micros.begun:
            raise RuntimeError(
                "a step has begun, and no checkpoint has its gradients: save after engine.step(), "
                "or drop them by engine.zero_grad()"
            )
        return self._own_tensors()

    @torch.no_grad()
    def _own_tensors(self) -> Iterator[tuple[str, Tensor]]:
        self.shards.take_over()
        for i, own in enumerate(self.shards.own):
            with self.home.at_hand(i, own, self.optimizer):
                for piece, part in own:
                    yield from entries(piece, part, self.optimizer.state.get(part, {}))

    def put_own(
        self,
        slots: Mapping[str, Slot],
        read: Callable[[str], Tensor],
        others: Read | None = None,
        into: Into | None = None,
    ) -> None:
        """Restore the tensors of `own_slots` and `own_tensors`; all ranks call it at any time. If
        names or shapes do not fit on a rank, all raise ValueError and nothing is restored.
        Gradients since the last step are dropped. At stages 1 and 2 the other ranks' elements are
        gathered, or read with `others(name, start, stop, place)`. `into(name, place)` may read
        directly to a tensor's place and returns True if it did."""
        self.zero_grad()
        others = others if self.stage in (1, 2) else None
        slots = {name: (dtype, tuple(shape)) for name, (dtype, shape) in slots.items()}
        reports = who_says(_fault(self.shards, self.optimizer, slots), self.groups)
        if reports:
            raise ValueError(f"put_own: nothing was restored: {by_rank(reports)}")
        error = None
        try:
            self._put_all(slots, read, into)
            if others is not None:
                self.shards.fill(others)
        except Exception as met:
            error = met
        more = ". Only part of the states was restored; start again with a new engine"
        try:
            together(error, self.groups, more)
        except OSError as said:
            self._over = str(said)
            raise
        if others is None:
            self.shards.gather()
        self.home.updated()

    @torch.no_grad()
    def _put_all(
        self, slots: Mapping[str, Slot], read: Callable[[str], Tensor], into: Into | None
    ) -> None:
        names: dict[str, list[str]] = {}
        for name in slots:
            names.setdefault(name.rpartition(":")[0], []).append(name)
        group_of, states = _groups(self.optimizer), self.optimizer.state
        self.shards.take_over()  # moves parameters with new memory back to their place
        for i, own in enumerate(self.shards.own):
            with self.home.at_hand(i, own, self.optimizer, write=True), self.home.placed():
                for piece, part in own:
                    some = {name: slots[name] for name in names[label_of(piece)]}
                    _put_part(part, some, read, into, states, group_of.get(part, {}))

    def counters(self) -> dict:
        """Return other state for a checkpoint, as JSON: skipped steps, the loss scale, and the
        options of the optimizer's groups, which a schedule may have changed."""
        scale = self.precision.scale
        groups = self.optimizer.param_groups
        return {
            "skipped": self.skipped,
            "scale": scale and {"value": scale.value, "good": scale.good, "left": scale.left},
            "groups": [_options(group) for group in groups],
        }

    def set_counters(self, counters: Mapping) -> None:
        """Continue from the counters of a different engine."""
        scale, groups = self.precision.scale, self.optimizer.param_groups
        if (scale is None) != (counters["scale"] is None):
            there, here = ("with", "without") if scale is None else ("without", "with")
            raise ValueError(
                f"set_counters: they are from training {there} a loss scale, but this engine is "
                f"{here}. Make it with the same precision="
            )
        if len(counters["groups"]) != len(groups):
            raise ValueError(
                f"set_counters: the optimizer had {len(counters['groups'])} groups, but this one "
                f"has {len(groups)}. Make it from the same groups"
            )
        self.skipped = counters["skipped"]
        for name, value in (counters["scale"] or {}).items():
            setattr(scale, name, value)
        for group, options in zip(groups, counters["groups"], strict=True):
            for name, value in options.items():
                if isinstance(group.get(name), Tensor):
                    group[name].fill_(value)
                else:
                    group[name] = tuple(value) if isinstance(value, list) else value


def entries(piece: BucketPiece, part: nn.Parameter, state: Mapping) -> Iterator[tuple[str, Tensor]]:
    """Yield a part's value and its states by name; numbers become tensors."""
    label = label_of(piece)
    yield f"{label}:{VALUE}", part.detach()
    for name, x in state.items():
        if isinstance(x, Tensor) and name != VALUE:
            yield f"{label}:{name}", x.detach()
        elif type(x) in NUMBERS:
            kind = type(x)
            x = torch.tensor(x, dtype=NUMBERS[kind], device="cpu")
            yield f"{label}:{name} ({kind.__name__})", x
        elif x is not None:
            raise ValueError(
                f"the optimizer keeps {name!r} for {piece.slot.name}, a {type(x).__name__}, but a "
                "checkpoint takes tensors and numbers. Use one of torch's optimizers"
            )


def label_of(piece: BucketPiece) -> str:
    return f"{piece.slot.name}[{piece.start}:{piece.stop}]"


def _put_part(
    part: nn.Parameter,
    slots: Mapping[str, Slot],
    read: Callable[[str], Tensor],
    into: Into | None,
    states: MutableMapping[nn.Parameter, dict],
    group: Mapping,  # empty if the part is frozen
) -> None:
    """Restore a part's value and its states, which replace all earlier states."""
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
    """Return True for host memory into which a tensor can be read."""
    if not isinstance(place, Tensor) or not place.dim():
        return False
    return place.device.type == "cpu" and place.is_contiguous() and _slot(place) == slot


def _read(name: str, slot: Slot, read: Callable[[str], Tensor]) -> Tensor:
    x = read(name)
    if _slot(x) != slot:
        raise ValueError(f"{name} should be {slot}, but was read as {_slot(x)}")
    return x


def _key_and_kind(name: str) -> tuple[str, type | None]:
    """Return (the state's name, and its Python type if it is a number, else None)."""
    key = name.rpartition(":")[2]
    for word, kind in KINDS.items():
        if key.endswith(f" ({word})"):
            return key.removesuffix(f" ({word})"), kind
    return key, None


def _placed(name: str, x: Tensor, before: object, part: nn.Parameter, group: Mapping) -> Tensor:
    """Return a state's values where the optimizer expects them, as in torch's load_state_dict: next
    to the parameter, except a count of steps."""
    if isinstance(before, Tensor) and _slot(before) == _slot(x):
        return before.copy_(x)
    if as_large(x, part) and name != "step":
        return torch.empty_like(part, dtype=x.dtype, requires_grad=False).copy_(x)
    counts = name == "step" and not (group.get("capturable") or group.get("fused"))
    return x.detach().to("cpu" if counts else part.device, copy=True)


def _fault(shards: Copies, optimizer: Optimizer, slots: Mapping[str, Slot]) -> str | None:
    """Describe the first slot that does not match this rank's parts; None if all match."""
    parts = {label_of(piece): part for piece, part in shards.parts()}
    by_label: dict[str, dict[str, Slot]] = {label: {} for label in parts}
    for name, slot in slots.items():
        label, _, key = name.rpartition(":")
        if label not in parts:
            return f"{name} is not among the parameters that this rank updates"
        by_label[label][key] = slot
    group_of, kind = _groups(optimizer), type(optimizer).__name__
    keeps: dict[tuple[int, torch.dtype], dict[str, torch.dtype]] = {}
    for label, part in parts.items():
        slot = by_label[label].pop(VALUE, None)
        if slot is None:
            return f"{label}:{VALUE} is missing"
        if slot != _slot(part):
            there, here = (f"{str(d)[6:]} of shape {shape}" for d, shape in (slot, _slot(part)))
            return f"{label}:{VALUE} is {there}, but the engine's is {here}"
        # The states of an optimizer that is not torch's, and their first step, are unknown.
        if by_label[label] and is_known(optimizer):
            group = group_of[part]
            if (id(group), part.dtype) not in keeps:
                keeps[id(group), part.dtype] = states_of(optimizer, group, part.dtype)
            here, there = keeps[id(group), part.dtype], {}
            for key, (dtype, shape) in by_label[label].items():
                if key != "step" and shape == tuple(part.shape):
                    there[key] = dtype
            for key in [*there, *here]:
                if there.get(key) != here.get(key):
                    return f"{label}:{key} {_differs(there.get(key), here.get(key), kind)}"
    return None


def _differs(there: torch.dtype | None, here: torch.dtype | None, kind: str) -> str:
    if there is None:
        return f"is missing, but this {kind} keeps it for every element"
    if here is None:
        return f"is a state that this {kind} does not keep"
    return f"is {there}, but this {kind} keeps it in {here}"


def _groups(optimizer: Optimizer) -> dict[nn.Parameter, dict]:
    return {part: group for group in optimizer.param_groups for part in group["params"]}


def _slot(x: Tensor) -> Slot:
    return x.dtype, tuple(x.shape)


def _options(group: Mapping) -> dict:
    """Return a group's options that are numbers, strings, or short lists of them."""
    options = {}
    for name, value in group.items():
        if name in NOT_OPTIONS:
            continue
        if isinstance(value, Tensor) and value.numel() == 1:
            options[name] = value.item()
        elif isinstance(value, PLAIN):
            options[name] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(x, PLAIN) for x in value):
            options[name] = list(value)
    return options
