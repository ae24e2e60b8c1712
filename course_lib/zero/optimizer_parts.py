"""The optimizer: which may be cut, and how one is handed this rank's parts and notices nothing.

One may be cut that treats every element for itself: a shard's update is then the whole's. torch's
own are known by name, bitsandbytes' by their bits; for any other its user has to vouch. Groups stay
groups, a schedule goes on holding the same optimizer, and states that were made before the first
step are cut like the parameters they belong to. Lesson 09.
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
    "Muon": "orthogonalizes whole matrices",
    "LBFGS": "takes its direction and its step from products over all gradients",
    "SparseAdam": "takes sparse gradients alone, and a shard's gradient is dense",
}
REMEDY = "Use an elementwise one, such as SGD, Adam or AdamW, or stage 0, which cuts nothing"


def check_elementwise(optimizer: Optimizer, *, vouched: bool = False) -> None:
    """Refuse an optimizer that would update a shard differently from the same part of the whole.

    torch's own classes are answered by name. Another class, a subclass of one of torch's too, is
    taken only if `vouched` for, as with DeepSpeed's zero_allow_untested_optimizer.
    """
    name = type(optimizer).__name__
    if _is_torchs(optimizer) and name in TORCH_OTHERS:
        raise ValueError(
            f"{name} updates a shard otherwise than the whole: it {TORCH_OTHERS[name]}, and a rank "
            f"has its shard alone. {REMEDY}"
        )
    if not vouched and not is_known(optimizer) and not _keeps_32_bits(optimizer):
        raise ValueError(
            f"{name} is none of torch's elementwise optimizers, and a rank has its shard alone: if "
            "it looks at one element at a time (no norm, row or block) and draws no random "
            f"numbers, pass elementwise=True. {REMEDY}"
        )


def is_known(optimizer: Optimizer) -> bool:
    """Whether it is one of torch's own that are elementwise."""
    return _is_torchs(optimizer) and type(optimizer).__name__ in ELEMENTWISE


def _keeps_32_bits(optimizer: Optimizer) -> bool:
    """Whether it is one of bitsandbytes' that neither quantizes its states nor takes norms."""
    options = getattr(optimizer, "args", None)
    return (
        type(optimizer).__module__.startswith("bitsandbytes.")
        and getattr(options, "optim_bits", None) == 32
        and not options.max_unorm
    )


def _is_torchs(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def states_of(optimizer: Optimizer, group: dict, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The states that one of torch's optimizers keeps for every element of a group's parameters,
    seen on another one of its class and options that has made a step."""
    device = next((p.device for p in group["params"] if not p.is_meta), torch.device("cpu"))
    part = nn.Parameter(torch.ones(3, dtype=dtype, device=device))
    part.grad = torch.ones_like(part)
    options = {name: value for name, value in group.items() if name != "param_names"}
    tried = type(optimizer)([{**options, "params": [part]}])
    tried.step()
    return {name: x.dtype for name, x in tried.state[part].items() if as_large(x, part)}


def as_large(x: object, part: Tensor) -> bool:
    """Whether a state has an element for each of the part's."""
    return isinstance(x, Tensor) and x.shape == part.shape


def check_fresh(optimizer: Optimizer) -> None:
    """Refuse an optimizer that has made steps: its moments belong to whole parameters."""
    for state in optimizer.state.values():
        if any(torch.is_tensor(value) and value.is_meta for value in state.values()):
            raise ValueError(
                f"this {type(optimizer).__name__} made its states with the model, on torch's meta "
                "device, where they have no numbers; give the model its numbers first"
            )
        if float(state.get("step", 1 if state else 0)) != 0:
            raise ValueError(
                f"this {type(optimizer).__name__} has made a step already, and its states belong "
                "to whole parameters; make the engine before the first step"
            )


def hand_over(optimizer: Optimizer, shards: Copies) -> None:
    """Let the optimizer know this rank's parts in the place of whole parameters, group by group."""
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
