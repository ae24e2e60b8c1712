"""A twin of an optimizer: the same class, options and attributes, over a few elements of its own.

What is tried on the twin leaves the user's optimizer, its parameters and its states as they are.
Lesson 09 tries on it whether a shard is updated as the whole is.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

LARGEST = 1 << 20  # elements of a tensor that an optimizer may keep in an attribute
RATE = 1.0  # every twin's lr: a warm-up begins at 0, where all optimizers look alike
NOT_COPIED = {
    *("param_groups", "state"),  # which are made anew, for other parameters
    *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),  # which may write anywhere
}


def twin_of(
    optimizer: Optimizer, groups: Sequence[dict], parameters: Sequence[list[nn.Parameter]]
) -> Optimizer:
    """A like optimizer with some of its groups, which hold these parameters; call its class's
    `step` on it.

    Attributes are copied, counters and tables too. Only what Python cannot copy, such as a lock or
    a process group, is shared with the optimizer.
    """
    twin = object.__new__(type(optimizer))
    twin._optimizer_step_pre_hooks = OrderedDict()
    twin._optimizer_step_post_hooks = OrderedDict()
    twin.state = defaultdict(dict)
    twin.param_groups = [_group(group, own) for group, own in zip(groups, parameters, strict=True)]
    _copy_attributes(optimizer, groups, twin)
    for group, own in zip(groups, parameters, strict=True):
        _copy_states(optimizer, group, twin, own)
    return twin


def device_of(group: dict) -> torch.device:
    """Where a group's parameters are; the CPU for those on torch's meta device."""
    return next((p.device for p in group["params"] if not p.is_meta), torch.device("cpu"))


def _group(group: dict, parameters: list[nn.Parameter]) -> dict:
    options = {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
    if "lr" in options:
        options["lr"] = RATE
    return {**options, "params": parameters}


def _copy_attributes(optimizer: Optimizer, groups: Sequence[dict], twin: Optimizer) -> None:
    """What points back at the optimizer, its groups or its states points at the twin's."""
    memo: dict[int, object] = {
        id(optimizer): twin,
        id(optimizer.state): twin.state,
        id(optimizer.param_groups): twin.param_groups,
    }
    for group, own in zip(groups, twin.param_groups, strict=True):
        memo[id(group)], memo[id(group["params"])] = own, own["params"]
    # A parameter that is kept outside its group is not exchanged for a shard either.
    every = [p for group in optimizer.param_groups for p in group["params"]]
    memo |= {id(p): nn.Parameter(torch.empty(0)) for p in every}
    with _SmallTensors():
        for name, value in vars(optimizer).items():
            if name in NOT_COPIED:
                continue
            try:
                twin.__dict__[name] = copy.deepcopy(value, memo)
            except _TooLargeError as error:
                raise ValueError(f"its attribute {name} holds {error}") from None
            except Exception:  # Python cannot copy it
                twin.__dict__[name] = value


class _TooLargeError(Exception):
    """A tensor that is no counter."""


class _SmallTensors(TorchFunctionMode):
    """While this is on, no copy of a large tensor is made: it would be a second model."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is Tensor.__deepcopy__ and args[0].numel() > LARGEST:
            raise _TooLargeError(
                f"a tensor of {args[0].numel():,} elements, which no engine cuts: only what is in "
                "its `state` becomes a shard's"
            )
        return func(*args, **(kwargs or {}))


def _copy_states(
    optimizer: Optimizer, group: dict, twin: Optimizer, parameters: list[nn.Parameter]
) -> None:
    """Some optimizers make their states before the first step: like ones for the twin.

    Stage 3 may have emptied the parameter since, and a state is then as large as the others.
    """
    made = [(p, state) for p in group["params"] if (state := optimizer.state.get(p))]
    old, states = max(made, key=lambda pair: _largest(pair[1]), default=(None, {}))
    size = old.numel() if old is not None and old.numel() else _largest(states)
    for p in parameters:
        for name, value in states.items():
            as_large = torch.is_tensor(value) and value.numel() == size and name != "step"
            if as_large and size:
                first = value.flatten()[0].item()
                twin.state[p][name] = torch.full_like(p, first, dtype=value.dtype)
            else:
                twin.state[p][name] = copy.deepcopy(value)


def _largest(states: Mapping[str, object]) -> int:
    """Elements of the largest tensor but the count of steps."""
    tensors = (x for name, x in states.items() if torch.is_tensor(x) and name != "step")
    return max((x.numel() for x in tensors), default=0)
