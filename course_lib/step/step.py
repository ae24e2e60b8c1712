"""One optimizer step on a (dp, tp) mesh, with the same result as one process with all rows.

Losses and gradients are summed, then divided once by the tokens of all replicas and micro-batches.
Gradients are summed over dp and clipped by the norm of the logical gradients. Lesson 08 derives it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import collectives, norms
from course_lib.collectives.agreement import IN_THEIR_SUM, by_rank, who_says
from course_lib.collectives.call import Group, device_of, labelled
from course_lib.meta import numbers
from course_lib.step.buckets import MOST, sum_gradients
from course_lib.step.losses import loss_sum, valid
from course_lib.step.pieces import axes, gradient_pieces


class StepResult(NamedTuple):
    """The mean loss over all tokens, the number of tokens, the gradient norm before clipping, and
    True if any rank asked to stop. It is the same on every rank."""

    loss: float
    tokens: int
    norm: float
    stop: bool = False


class NotFinite(RuntimeError):
    """An error for a NaN or infinite loss or gradient, raised before any rank changes a weight."""


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Sequence],
    mesh: DeviceMesh | None,
    *,
    clip: float | None = None,
    fused: bool = False,
    dtype: torch.dtype | None = None,
    stop: bool = False,
    bucket_bytes: int = MOST,
) -> StepResult:
    """Run forward and backward passes of micro-batches (ids, targets, …), then one update.

    tp ranks pass the same rows, dp ranks different rows, with any number of tokens or none. `clip`
    bounds the norm, `dtype` is for autocast, `stop` asks all ranks to stop, and `mesh=None` means
    one process. A non-finite value on one rank raises on all ranks before any weight has changed.
    """
    groups, parameters = axes(mesh), [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = None
    total, count, batches = 0.0, 0, list(batches)
    if not batches:
        raise ValueError("a step takes at least one batch, but got none")
    for batch in batches:
        ids, targets = batch[0], batch[1]  # (b, s) each
        with _autocast(ids.device, dtype):
            loss = loss_sum(model, ids, targets, fused=fused)
        loss.backward()
        total, count = total + numbers(loss, 0.0), count + valid(targets)

    every = tally(total, count, stop, groups)
    check_losses(every, total, groups)
    if len(groups) > 1 and groups[1].size() > 1:  # tp comes first, then dp
        sum_gradients(parameters, groups[1], most=bucket_bytes)
    for p in parameters:
        if p.grad is not None:
            p.grad.div_(max(1, every.tokens))  # once, after all sums, so all tokens weigh the same
    pieces = gradient_pieces(model, mesh)
    size = norms.norm(pieces, groups) if clip is None else norms.clip(pieces, groups, clip)
    size = numbers(size, 0.0)
    if not math.isfinite(size):
        raise NotFinite(_who(_not_finite(model), groups))
    optimizer.step()
    return StepResult(every.loss / max(1, every.tokens), every.tokens, size, every.stops > 0)


class Tally(NamedTuple):
    """Sums of loss and tokens over replicas, and counts of ranks that stop or have a bad loss."""

    loss: float
    tokens: int
    stops: int
    bad: int


def tally(loss: float, tokens: int, stop: bool, groups: Sequence[Group]) -> Tally:
    """Sum over all ranks with one small message per axis; `groups` are tp's and dp's. Loss and
    tokens are equal on all tp ranks, so only the first adds them; every rank adds two flags."""
    first = not groups or groups[0].rank() == 0
    own = [loss if first else 0.0, tokens if first else 0, stop, not math.isfinite(loss)]
    numbers = torch.tensor(own, dtype=torch.float64, device=device_of(*groups))
    with labelled("scalars"):
        for group in groups:
            if group.size() > 1:
                numbers = collectives.all_reduce(numbers, group, donated=True)
    total, *counts = numbers.tolist()
    return Tally(total, *map(int, counts))


def check_losses(every: Tally, total: float, groups: Sequence[Group]) -> None:
    """Raise on all ranks if a loss is not finite on any rank; `total` is this rank's loss."""
    if every.bad:
        raise NotFinite(_who(None if math.isfinite(total) else f"its loss is {total}", groups))


def _who(own: str | None, groups: Sequence[Group]) -> str:
    """Collect the ranks' findings; all ranks must call this, knowing that a finding exists."""
    return by_rank(who_says(own, groups)) or IN_THEIR_SUM


def _not_finite(model: nn.Module) -> str | None:
    """Describe the gradients of this rank that hold a NaN or an infinity."""
    names = [
        name
        for name, p in model.named_parameters()
        if p.grad is not None and not numbers(p.grad.isfinite().all(), True)
    ]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"the gradient of {names[0]}{more} is not finite" if names else None


def _autocast(device: torch.device, dtype: torch.dtype | None) -> contextlib.AbstractContextManager:
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)
