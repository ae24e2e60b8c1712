"""The optimizer: the classes that can be sharded, and how the engine replaces their parameters.

An optimizer can be sharded if it updates each element independently, because a shard's update is
then part of the full update. torch's own optimizers are known by name, and bitsandbytes' by their
bits; the user must confirm this for others. Groups stay groups, a schedule keeps its optimizer, and
states from before the first step are sharded like their parameters. Lesson 09.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.zero.partition import BucketPiece
from course_lib.zero.shards import Copies

ELEMENTWISE = {
    *("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop"),
    *("Rprop", "ASGD"),
}
TORCH_OTHERS = {
    "Adafactor": "keeps the second moments of a matrix by its rows and columns",
    "Muon": "orthogonalizes full matrices",
    "LBFGS": "takes its direction and its step from products over all gradients",
    "SparseAdam": "only takes sparse gradients, while a shard's gradient is dense",
}
REMEDY = "Use an elementwise one, such as SGD, Adam or AdamW, or stage 0, which shards nothing"


def check_elementwise(optimizer: Optimizer, *, vouched: bool = False) -> None:
    """Raise for an optimizer that might update a shard unlike the same part of the full tensor.

    torch's own classes are recognized by name. Other classes, including subclasses of torch's, are
    accepted only if `vouched` for, as with DeepSpeed's zero_allow_untested_optimizer.
    """
    name = type(optimizer).__name__
    if _is_torchs(optimizer) and name in TORCH_OTHERS:
        raise ValueError(
            f"{name} updates a shard differently than the full tensor, because it "
            f"{TORCH_OTHERS[name]}, but a rank has only its shard. {REMEDY}"
        )
    if not vouched and not is_known(optimizer) and not _keeps_32_bits(optimizer):
        raise ValueError(
            f"{name} is not one of torch's elementwise optimizers, but a rank has only its shard. "
            "If it uses each element on its own (no norm, row or block) and draws no random "
            f"numbers, pass elementwise=True. {REMEDY}"
        )


def is_known(optimizer: Optimizer) -> bool:
    """Return True for torch's own elementwise optimizers."""
    return _is_torchs(optimizer) and type(optimizer).__name__ in ELEMENTWISE


def _keeps_32_bits(optimizer: Optimizer) -> bool:
    """Return True for bitsandbytes' optimizers that neither quantize states nor take norms."""
    options = getattr(optimizer, "args", None)
    return (
        type(optimizer).__module__.startswith("bitsandbytes.")
        and getattr(options, "optim_bits", None) == 32
        and not options.max_unorm
    )


def _is_torchs(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def states_of(optimizer: Optimizer, group: dict, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return the states that a torch optimizer keeps for every element of a group's parameters,
    observed on a new optimizer of its class and options after one step."""
    device = next((p.device for p in group["params"] if not p.is_meta), torch.device("cpu"))
    part = nn.Parameter(torch.ones(3, dtype=dtype, device=device))
    part.grad = torch.ones_like(part)
    options = {name: value for name, value in group.items() if name != "param_names"}
    tried = type(optimizer)([{**options, "params": [part]}])
    tried.step()
    return {name: x.dtype for name, x in tried.state[part].items() if as_large(x, part)}


def as_large(x: object, part: Tensor) -> bool:
    """Return True for a state with one element for each element of the part."""
    return isinstance(x, Tensor) and x.shape == part.shape


def check_fresh(optimizer: Optimizer) -> None:
    """Raise for an optimizer that has made steps, because its states are of full parameters."""
    for state in optimizer.state.values():
        if any(torch.is_tensor(value) and value.is_meta for value in state.values()):
            raise ValueError(
                f"this {type(optimizer).__name__} made its states with the model on torch's meta "
                "device, where they have no values; give the model its values first"
            )
        if float(state.get("step", 1 if state else 0)) != 0:
            raise ValueError(
                f"this {type(optimizer).__name__} has made a step already, and its states belong "
                "to full parameters; make the engine before the first step"
            )


def hand_over(optimizer: Optimizer, shards: Copies) -> None:
    """Replace the optimizer's full parameters by this rank's parts, group by group."""
    parts: dict[nn.Parameter, list[tuple[BucketPiece, nn.Parameter]]] = {}
    for piece, part in shards.parts():
        parts.setdefault(piece.slot.parameter, []).append((piece, part))
    for group in optimizer.param_groups:
        own_parts = []
        for p in group["params"]:
            whole = optimizer.state.pop(p, None)
            for piece, part in parts.get(p, []):
                own_parts.append(part)
                if whole:
                    optimizer.state[part] = {k: _cut(k, v, piece, part) for k, v in whole.items()}
        group["params"] = own_parts


def _cut(name: str, value: object, piece: BucketPiece, part: nn.Parameter) -> object:
    if name == "step" or not torch.is_tensor(value) or value.shape != piece.slot.shape:
        return copy.deepcopy(value)
    own = value.reshape(-1)[piece.start : piece.stop].view(part.shape)
    return own.to(part.device, part.dtype, copy=True)
