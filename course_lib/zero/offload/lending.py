"""One optimizer, lent the parts and states of one bucket at a time.

It stays the user's: its groups, their rates and its schedulers. What it keeps for every number goes
to the file, its counters stay. Whether it can be used so is tried out first. Lesson 12.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.zero.elementwise import (
    SCALES,
    STEPS,
    ZERO_STEP,
    generators_kept,
    groups_to_try,
)
from course_lib.zero.twin import device_of, twin_of

SIZES = (3, 20_000)  # elements of a part: some optimizers treat large ones otherwise


def states_of(optimizer: Optimizer, group: dict, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The states that are as large as what they belong to, seen on a twin."""
    by_size = []
    for size in SIZES:
        part = nn.Parameter(torch.ones(size, dtype=dtype, device=device_of(group)))
        twin = twin_of(optimizer, [group], [[part]])
        for _ in range(STEPS):
            part.grad = torch.ones_like(part)
            type(optimizer).step(twin)
        by_size.append({name: x.dtype for name, x in twin.state[part].items() if as_large(x, part)})
    small, large = by_size
    if small != large:
        raise ValueError(
            f"{type(optimizer).__name__} keeps for {SIZES[0]} elements the states "
            f"{_in_words(small)} and for {SIZES[1]:,} {_in_words(large)}: a file has no place for "
            "states that change with the size. Use SGD, Adam or AdamW, or offload='cpu'"
        )
    return small


def _in_words(states: dict[str, torch.dtype]) -> str:
    return ", ".join(f"{name} ({dtype})" for name, dtype in states.items()) or "(none)"


def as_large(x: object, part: Tensor) -> bool:
    return isinstance(x, Tensor) and x.shape == part.shape


def check_lendable(optimizer: Optimizer) -> None:
    """Step a twin on three parts at once, and one on each by itself, and compare, each step."""
    groups = groups_to_try(optimizer)
    with generators_kept(optimizer):
        for size in SIZES:
            whole, lent = (_after(optimizer, groups, size, apart=apart) for apart in (False, True))
            if not bool(((whole == lent) | (whole.isnan() & lent.isnan())).all()):
                raise ValueError(
                    f"{type(optimizer).__name__} computes otherwise when it is lent one bucket of "
                    "a step after another, as offload to files has to: it counts its own steps, "
                    "perhaps, or looks at all parameters together. Use SGD, Adam or AdamW, or "
                    "offload='cpu'"
                )


def _after(optimizer: Optimizer, groups: list[dict], size: int, *, apart: bool) -> Tensor:
    """(STEPS, …): the weights of all groups' parts after each step, each part lent by itself or
    all together."""
    generator = torch.Generator().manual_seed(1)
    shape = 1 + STEPS, len(groups), 3, size
    start, *gradients = torch.randn(shape, generator=generator, device="cpu")
    own = [
        [nn.Parameter(x.to(device_of(group), copy=True)) for x in some]
        for group, some in zip(groups, start, strict=True)
    ]
    twin = twin_of(optimizer, groups, own)
    lender, parts = Lender(twin), [part for some in own for part in some]
    lots = [[part] for part in parts] if apart else [parts]
    found = []
    for step, (gradient, scale) in enumerate(zip(gradients, SCALES, strict=True)):
        for i, (part, g) in enumerate(zip(parts, gradient.flatten(0, 1), strict=True)):
            part.grad = (g * scale * (step != ZERO_STEP or i > 0)).to(part.device)
        for lot in lots:
            lender.lend(set(lot), lambda: type(optimizer).step(twin))
        found.append(torch.cat([part.detach().cpu() for part in parts]))
    return torch.stack(found) if parts else torch.empty(0)


class Lender:
    """An optimizer's groups, of which a call sees some of the parts alone."""

    def __init__(self, optimizer: Optimizer):
        self.optimizer = optimizer

    def lend(self, parts: Container[nn.Parameter], step, *, first: bool = True, last: bool = True):
        """Call `step` while the groups hold these parts and no others; hooks that were laid on the
        optimizer's step run once, before the first and after the last bucket."""
        groups = self.optimizer.param_groups
        every = [group["params"] for group in groups]
        before = self.optimizer._optimizer_step_pre_hooks
        after = self.optimizer._optimizer_step_post_hooks
        try:
            for group in groups:
                group["params"] = [part for part in group["params"] if part in parts]
            if not first:
                self.optimizer._optimizer_step_pre_hooks = OrderedDict()
            if not last:
                self.optimizer._optimizer_step_post_hooks = OrderedDict()
            return step()
        finally:
            for group, own in zip(groups, every, strict=True):
                group["params"] = own
            self.optimizer._optimizer_step_pre_hooks = before
            self.optimizer._optimizer_step_post_hooks = after
