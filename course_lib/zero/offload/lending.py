"""One optimizer, lent the parts and states of one bucket at a time.

It stays the user's: its groups, their rates and its schedulers. What it keeps for every number goes
to the file, its counters stay. Lesson 12.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from torch import nn
from torch.optim import Optimizer

from course_lib.zero.elementwise import is_known


def check_lendable(optimizer: Optimizer) -> None:
    """Refuse an optimizer that may count its own steps, or look at all parameters together."""
    if not is_known(optimizer):
        raise ValueError(
            f"offload to files lends {type(optimizer).__name__} one bucket of a step after another "
            "and has to know its states, which is right for torch's own elementwise optimizers: "
            "use SGD, Adam or AdamW, or offload='cpu'"
        )


def lend(
    optimizer: Optimizer, parts: Container[nn.Parameter], *, first: bool = True, last: bool = True
) -> None:
    """Step while the optimizer's groups hold these parts and no others; hooks that were laid on its
    step run once, before the first and after the last bucket."""
    every = [group["params"] for group in optimizer.param_groups]
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    try:
        for group in optimizer.param_groups:
            group["params"] = [part for part in group["params"] if part in parts]
        if not first:
            optimizer._optimizer_step_pre_hooks = OrderedDict()
        if not last:
            optimizer._optimizer_step_post_hooks = OrderedDict()
        optimizer.step()
    finally:
        for group, own in zip(optimizer.param_groups, every, strict=True):
            group["params"] = own
        optimizer._optimizer_step_pre_hooks = before
        optimizer._optimizer_step_post_hooks = after
