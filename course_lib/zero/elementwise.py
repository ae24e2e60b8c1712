"""Which optimizers may be cut: those that treat every number for itself.

A shard's update is then the whole's. An optimizer that looks at a matrix or a norm would compute
something else of each shard, without a word; here it is tried out, and refused. Lesson 09.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

ROWS, COLUMNS, STEPS = 3, 4, 3
FIRST = 5  # numbers of the first shard: the cut goes through a row


def check_elementwise(optimizer: Optimizer) -> None:
    """Step a twin of the optimizer on a small matrix, whole and in two shards, and compare."""
    generator = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn((STEPS + 1, ROWS * COLUMNS), generator=generator).unbind()
    for group in optimizer.param_groups:
        try:
            whole = _after(
                optimizer, group, [x.view(ROWS, COLUMNS)[None] for x in (start, *gradients)]
            )
            cut = _after(optimizer, group, [_two(x) for x in (start, *gradients)])
        except Exception as error:
            raise ValueError(
                f"{type(optimizer).__name__} does not step on a shard ({error}), and a rank has "
                f"nothing else. {REMEDY}"
            ) from error
        if not torch.allclose(whole, cut, rtol=1e-5, atol=1e-7):
            raise ValueError(
                f"{type(optimizer).__name__} updates a shard otherwise than the whole: it looks at "
                f"more than one number at a time, and a rank has its shard alone. {REMEDY}"
            )


REMEDY = "Use an elementwise one, such as SGD, Adam or AdamW, or stage 0, which cuts nothing"


def twin_of(optimizer: Optimizer, group: dict, parameters: list[nn.Parameter]) -> Optimizer:
    """A like optimizer with one group, of these parameters; call its class's `step` on it."""
    twin = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    twin._optimizer_step_pre_hooks = OrderedDict()
    twin._optimizer_step_post_hooks = OrderedDict()
    options = {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
    if "lr" in options:  # a warm-up begins at 0, where every optimizer looks alike
        options["lr"] = 0.1
    twin.param_groups, twin.state = [{**options, "params": parameters}], defaultdict(dict)
    old = next((p for p in group["params"] if p.numel() and optimizer.state.get(p)), None)
    for p in parameters if old is not None else ():  # some make their states before the first step
        for name, value in optimizer.state[old].items():
            own = torch.is_tensor(value) and value.shape == old.shape and name != "step"
            twin.state[p][name] = (
                torch.full_like(p, value.flatten()[0].item()) if own else copy.deepcopy(value)
            )
    return twin


def _two(x: Tensor) -> list[Tensor]:
    return [x[:FIRST], x[FIRST:]]


def _after(optimizer: Optimizer, group: dict, numbers: list[list[Tensor]]) -> Tensor:
    """What a like optimizer makes of the first numbers, given the others as gradients."""
    device = next((p.device for p in group["params"] if not p.is_meta), torch.device("cpu"))
    parameters = [nn.Parameter(x.to(device, copy=True)) for x in numbers[0]]
    twin = twin_of(optimizer, group, parameters)
    for step in numbers[1:]:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.to(device, copy=True)
        type(optimizer).step(twin)
    return torch.cat([p.detach().reshape(-1) for p in parameters])
