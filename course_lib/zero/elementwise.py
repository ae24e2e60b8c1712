"""Which optimizers may be cut: those that treat every element for itself, so that a shard's update
is the whole's.

torch's own are known by name, bitsandbytes' by their bits; for any other its user has to vouch.
Lesson 09.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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
            f"{name} is none of torch's elementwise optimizers, and a rank has its shard alone: an "
            "update that looks at more than one element (at a norm, a row, a block, how many "
            "parameters there are), or that draws random numbers, would train each shard "
            f"differently from the whole. If {name} does nothing of that, pass elementwise=True. "
            f"{REMEDY}"
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
