"""The options of stage 3: its units, the bytes that stay gathered, and a `fill`.

An engine takes these as its keywords and refuses them at other stages. With a fill, no rank ever
holds the full model. Each rank creates a parameter, keeps its shard and frees the rest, so the peak
is the shards plus the largest parameter. A fill runs on the rank's device, so a GPU's generator
gives different values than the CPU's for the same seed. Lesson 11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.zero.refusals import check_names

PERSIST = 1 << 16  # bytes; keeping a smaller parameter is cheaper than sending it
Fill = Callable[[str, Tensor], object]


@dataclass(frozen=True)
class Stage3Options:
    """Options of stage 3. `units` are the modules to gather together (None for the members of every
    ModuleList), and `prefetch` is the number of units gathered ahead. `keep` bytes may stay
    gathered from the forward to the backward pass, and parameters below `persist` bytes always do.
    `fill(name, tensor)` gives values to a model on torch's meta device."""

    units: Sequence[nn.Module] | None = None
    prefetch: int = 1
    keep: int = 0
    persist: int = PERSIST
    fill: Fill | None = None

    @classmethod
    def named(
        cls, options: Mapping[str, object], known: Sequence[str], stage: object
    ) -> Stage3Options:
        """Read stage 3's options from an engine's keywords; `known` are its other keywords."""
        check_names(options, known, [field.name for field in fields(cls)], stage)
        return cls(**options)


def outlined(model: nn.Module, optimizer: Optimizer | None, device: torch.device) -> bool:
    """Move parameters from torch's meta device to `device`, still as shapes without memory, in the
    model and in the optimizer, if any. Return True if the model had meta parameters."""
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
    """Return True for a shape without memory."""
    return p.numel() * p.element_size() > p.untyped_storage().nbytes()


@torch.no_grad()
def value(name: str, p: nn.Parameter, fill: Fill | None) -> Tensor:
    """Return a parameter's values, made by `fill` if it has none yet."""
    if not is_outline(p):
        return p.detach()
    if fill is None:
        raise ValueError(
            f"{name} is on torch's meta device, without values: pass fill=, a function of a name "
            "and a tensor that sets its values, such as a GPT's start_one, the same on every rank"
        )
    whole = torch.empty(p.shape, dtype=p.dtype, device=p.device)
    fill(name, whole)
    return whole
