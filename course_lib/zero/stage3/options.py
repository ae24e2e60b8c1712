"""What stage 3 alone can be asked for: its units, what of them is whole when, and a `fill`.

An engine takes these as keywords of its own and refuses them at another stage. With a fill no rank
ever holds the model whole: each makes a parameter, keeps its shard of it and lets the rest go, so
that the peak is the shards and the largest parameter. A fill draws where the rank computes: a
GPU's generator gives other numbers than the CPU's does for the same seed. Lesson 11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.zero.refusals import check_names

PERSIST = 1 << 16  # bytes: a parameter that is smaller costs less kept than sent
Fill = Callable[[str, Tensor], object]


@dataclass(frozen=True)
class Stage3Options:
    """`units`: modules whose parameters come and go together, None for the members of every
    ModuleList; `prefetch`: units asked for ahead; `keep`: bytes that may stay whole from the
    forward to the backward; `persist`: bytes below which a parameter stays whole; `fill`: a
    function of a name and a tensor, which gives numbers to a model on torch's meta device."""

    units: Sequence[nn.Module] | None = None
    prefetch: int = 1
    keep: int = 0
    persist: int = PERSIST
    fill: Fill | None = None

    @classmethod
    def named(
        cls, options: Mapping[str, object], known: Sequence[str], stage: object
    ) -> Stage3Options:
        """Read stage 3's options from an engine's keywords; `known` are the engine's others."""
        check_names(options, known, [field.name for field in fields(cls)], stage)
        return cls(**options)


def outlined(model: nn.Module, optimizer: Optimizer | None, device: torch.device) -> bool:
    """Bring a model's parameters from torch's meta device to `device`, as shapes still without
    memory, in the optimizer too if there is one. Whether there were any."""
    outlines: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, old in module.named_parameters(recurse=False):
            if old.is_meta:
                if old not in outlines:
                    shape = torch.empty(1, dtype=old.dtype, device=device).expand(old.shape)
                    outlines[old] = nn.Parameter(shape, requires_grad=old.requires_grad)
                setattr(module, name, outlines[old])
    for group in optimizer.param_groups if optimizer is not None else ():
        group["params"] = [outlines.get(p, p) for p in group["params"]]
    return bool(outlines)


def is_outline(p: Tensor) -> bool:
    """Whether there is no memory behind a shape."""
    return p.numel() * p.element_size() > p.untyped_storage().nbytes()


@torch.no_grad()
def value(name: str, p: nn.Parameter, fill: Fill | None) -> Tensor:
    """A parameter's numbers, made by `fill` where it has none yet."""
    if not is_outline(p):
        return p.detach()
    if fill is None:
        raise ValueError(
            f"{name} is on torch's meta device, without numbers: pass fill=, a function of a name "
            "and a tensor that puts them there, such as a GPT's start_one, the same on every rank"
        )
    whole = torch.empty(p.shape, dtype=p.dtype, device=p.device)
    fill(name, whole)
    return whole
