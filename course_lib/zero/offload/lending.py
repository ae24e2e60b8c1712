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

from course_lib.zero.elementwise import STEPS, twin_of


def states_of(optimizer: Optimizer, group: dict, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The states that are as large as what they belong to, seen on a small twin."""
    part = nn.Parameter(torch.ones(3, dtype=dtype))
    twin = twin_of(optimizer, group, [part])
    for _ in range(STEPS):
        part.grad = torch.ones_like(part)
        type(optimizer).step(twin)
    return {name: x.dtype for name, x in twin.state[part].items() if as_large(x, part)}


def as_large(x: object, part: Tensor) -> bool:
    return isinstance(x, Tensor) and x.shape == part.shape


def check_lendable(optimizer: Optimizer) -> None:
    """Step a twin on two numbers at once, and one on each by itself, and compare."""
    for group in optimizer.param_groups:
        whole, lent = _after(optimizer, group, lots=1), _after(optimizer, group, lots=2)
        if not torch.equal(whole, lent):
            raise ValueError(
                f"{type(optimizer).__name__} computes otherwise when it is lent one bucket of a "
                "step after another, as offload to files has to: it counts its own steps, perhaps. "
                "Use SGD, Adam or AdamW, or offload='cpu'"
            )


def _after(optimizer: Optimizer, group: dict, lots: int) -> Tensor:
    parts = [nn.Parameter(torch.tensor([x])) for x in (1.0, -2.0)]
    twin = twin_of(optimizer, group, parts)
    lender = Lender(twin)
    for step in range(STEPS):
        for number, part in enumerate(parts):
            part.grad = torch.tensor([0.5 + step - number])
        for lot in [parts] if lots == 1 else [parts[:1], parts[1:]]:
            lender.lend(set(lot), lambda: type(optimizer).step(twin))
    return torch.cat([part.detach() for part in parts])


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
