"""Head and loss for a few tokens at a time, so that no rank ever holds all its logits.

The forward pass keeps three values per token, and the backward pass recomputes the logits. This
costs one more product, but peak memory no longer grows with tokens times vocabulary. Lesson 07.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from course_lib.collectives import all_reduce
from course_lib.collectives.call import Group
from course_lib.tensor_parallel.cross_entropy import (
    IGNORED,
    any_broken,
    combine,
    gradient,
    local_statistics,
    reduced,
)
from course_lib.tensor_parallel.kernel_choice import kernels_for
from course_lib.tensor_parallel.loss_checks import checked, wide
from course_lib.tensor_parallel.products import autocast


def head_cross_entropy(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    group: Group,
    *,
    vocabulary: int,
    padded: int | None = None,
    tokens_at_once: int | None = None,
    ignore_index: int = IGNORED,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    check: bool = True,
) -> Tensor:
    """Compute cross_entropy(states @ weight.T, targets), for replicated states (…, h) and this
    rank's rows (v/tp, h) of the head.

    `tokens_at_once` bounds the number of tokens with logits in memory (default: an eighth of all).
    The states' gradient is summed over the ranks once. All else is as in cross_entropy.
    """
    options = (vocabulary, padded, ignore_index, label_smoothing, reduction, check)
    flat, part = checked("states", states, len(weight), targets, group, *options)
    if weight.shape[1] != states.shape[-1]:
        raise ValueError(
            f"rank {group.rank()}: states of width {states.shape[-1]} need a head with as many "
            f"columns, but got {tuple(weight.shape)}"
        )
    step = max(1, -(-flat.numel() // 8) if tokens_at_once is None else tokens_at_once)
    rows = states.reshape(flat.numel(), states.shape[-1])  # (t, h)
    rows, weight = autocast(rows.device, rows, weight)
    losses = _HeadCrossEntropy.apply(rows, weight, flat, group, step, part)
    return reduced(losses, targets, ignore_index, reduction)


class _HeadCrossEntropy(Function):
    @staticmethod
    def forward(ctx, states, weight, targets, group, step, part):
        kernels = kernels_for(states)
        stats = states.new_empty((4, len(targets)), dtype=wide(states))
        for rows in _slices(len(targets), step):
            logits = states[rows] @ weight.t()  # (step, v/tp)
            if kernels is None:
                stats[:, rows] = local_statistics(logits, targets[rows], part)
            else:
                start, real, smoothing = part.start, part.real, part.smoothing
                stats[:, rows] = kernels.local_statistics(
                    logits, targets[rows], start, real, smoothing
                )
            del logits  # before the next logits are computed
        share, losses = combine(stats, targets, group, part)
        ctx.kernels, ctx.broken = kernels, kernels is None and any_broken(stats, part.check)
        kept = None if kernels is None else stats  # without kernels, the softmax is recomputed
        ctx.save_for_backward(states, weight, targets, kept, share)
        ctx.group, ctx.step, ctx.part = group, step, part
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        states, weight, targets, stats, share = ctx.saved_tensors
        token = torch.where(targets == ctx.part.ignore_index, 0.0, grad.to(share.dtype))  # (t,)
        needs_states, needs_weight = ctx.needs_input_grad[:2]
        d_states = torch.empty_like(states) if needs_states else None
        d_weight = torch.zeros_like(weight) if needs_weight else None
        for rows in _slices(len(targets), ctx.step):
            logits = states[rows] @ weight.t()  # (step, v/tp)
            ids, mine, pull = targets[rows], share[rows], token[rows]
            if ctx.kernels is None:
                gradient(logits, ids, mine, pull, logits, ctx.part, broken=ctx.broken)
            else:
                of_rows, how = stats[:, rows], ctx.part.of_gradient
                ctx.kernels.gradient(logits, ids, of_rows, mine, pull, logits, *how)
            if needs_states:
                torch.mm(logits, weight, out=d_states[rows])
            if needs_weight:
                d_weight.addmm_(logits.t(), states[rows])
            del logits
        if needs_states:
            d_states = all_reduce(d_states, ctx.group, donated=True)
        return d_states, d_weight, None, None, None, None


def _slices(tokens: int, step: int) -> list[slice]:
    return [slice(i, min(tokens, i + step)) for i in range(0, tokens, step)]
