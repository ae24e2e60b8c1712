"""Cross-entropy of logits sharded over the vocabulary: three numbers a token meet, no logits.

A rank knows its largest logit, its sum of exponentials and, perhaps, the target's logit. Two small
all-reduces complete them; the backward, softmax minus one-hot, sends nothing. Lesson 07 derives it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from course_lib.collectives import all_reduce
from course_lib.collectives.call import Group
from course_lib.meta import numbers
from course_lib.tensor_parallel.kernels_for import kernels_for
from course_lib.tensor_parallel.loss_checks import check_not_refused, checked, wide

IGNORED = -100  # as in torch
_CHUNK = 1 << 19  # numbers worked on at once: what stays in a cache, and bounds the memory
_LEAST = 1 << 15  # fewer are not worth a piece
_CHUNK_ON_GPU = 1 << 26  # there a small piece costs more to launch than to compute


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    group: Group,
    *,
    vocabulary: int,
    padded: int | None = None,
    ignore_index: int = IGNORED,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    check: bool = True,
) -> Tensor:
    """torch's cross_entropy for this rank's logits (…, v/tp) and the targets (…), whole ids.

    `vocabulary` is the number of real words, `padded` the number of logits that are cut over the
    ranks where that is more: what lies beyond takes no part. A mean over no token at all is 0.
    `check` looks for targets out of range and for a rank that was handed something else than the
    others, which on a GPU makes the host wait.
    """
    flat, part = checked(
        "logits", logits, logits.shape[-1], targets, group, vocabulary, padded, ignore_index,
        label_smoothing, reduction, check,
    )  # fmt: skip
    keep = torch.is_grad_enabled() and logits.requires_grad
    rows = logits.reshape(flat.numel(), logits.shape[-1])  # (t, v/tp)
    losses = _CrossEntropy.apply(rows, flat, group, keep, part)
    return reduced(losses, targets, ignore_index, reduction)


def reduced(losses: Tensor, targets: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """Losses (t,), 0 where ignored, to what is asked for: of each of the targets (…), or one."""
    if reduction == "none":
        return losses.view(targets.shape)
    total = losses.sum()
    if reduction == "sum":
        return total
    count = (targets != ignore_index).sum()
    return total / count.clamp(min=1)


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx, logits, targets, group, keep, part):
        start, real, vocabulary, ignore_index, smoothing, check = part
        # The softmax over this rank's words lies where the gradient will: in no other memory. In
        # bf16 it would be rounded there before its time, and is made again. Kernels keep nothing:
        # they make it on the way from the logits to the gradient.
        kernels = kernels_for(logits)
        keep = keep and kernels is None
        made = torch.empty_like(logits) if keep and logits.dtype == wide(logits) else None
        if kernels is None:
            own = local_numbers(logits, targets, start, real, smoothing, made)
        else:
            own = kernels.local_numbers(logits, targets, start, real, smoothing)
        share, losses = combine(
            own, targets, group, real, vocabulary, ignore_index, smoothing, check=check
        )
        ctx.save_for_backward(logits, targets, None if kernels is None else own, share)
        ctx.kernels, ctx.broken = kernels, kernels is None and any_broken(own, check)
        ctx.made, ctx.where = made, (start, real, vocabulary, smoothing)
        ctx.group, ctx.ignore_index = group, ignore_index
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        logits, targets, own, share = ctx.saved_tensors
        made, ctx.made = ctx.made, None  # a second backward makes it again from the logits
        out = torch.empty_like(logits) if made is None else made  # (t, v/tp)
        weight = torch.where(targets == ctx.ignore_index, 0.0, grad.to(share.dtype))  # (t,)
        if ctx.kernels is None:
            how = {"made": made is not None, "broken": ctx.broken}
            gradient(logits, targets, share, weight, out, *ctx.where, **how)
        else:
            ctx.kernels.gradient(logits, targets, own, share, weight, out, *ctx.where)
        return out, None, None, None, None


def local_numbers(
    logits: Tensor,
    targets: Tensor,
    start: int,
    real: int,
    smoothing: float,
    keep: Tensor | None = None,
) -> Tensor:
    """(t, v/tp) local logits -> (4, t): their maximum, the sum of exponentials relative to it, the
    target's logit or 0, and, where labels are smoothed, the sum of logits relative to the maximum.
    `keep` is filled with the softmax over this rank's entries."""
    own = logits.new_zeros((4, logits.shape[0]), dtype=wide(logits))
    own[0] = -math.inf
    if not real:
        return own
    for rows, buffer in chunks(logits, real, keep):
        words = logits[rows, :real]  # (chunk, real)
        torch.softmax(words, -1, dtype=own.dtype, out=buffer)
        own[0, rows] = words.amax(-1)
        # The largest exponential is 1, so max of the softmax = 1/S, and S is its reciprocal.
        own[1, rows] = buffer.amax(-1).reciprocal_()
        local = targets[rows] - start
        here = (local >= 0) & (local < real)
        found = words.gather(-1, local.clamp(0, real - 1)[:, None])[:, 0]
        own[2, rows] = torch.where(here, found, 0.0)
        if smoothing:
            own[3, rows] = (words - finite(own[0, rows])[:, None]).sum(-1)
    own[1].masked_fill_(own[0] == -math.inf, 0.0)  # such a row's softmax is 0/0
    return own


def combine(
    own: Tensor,
    targets: Tensor,
    group: Group,
    real: int,
    vocabulary: int,
    ignore_index: int,
    smoothing: float,
    *,
    check: bool = False,
) -> tuple[Tensor, Tensor]:
    """Two all-reduces: (4, t) of each rank -> this rank's share of a token's probability, (t,), and
    the losses, (t,). The softmax over this rank's entries, times the share, is that over all."""
    most = all_reduce(own[0], group, "max")
    if check:
        check_not_refused(most, group)
    # Sums are added relative to the same logit: each is rescaled to the largest of all ranks.
    nearer = torch.where(own[0] == -math.inf, 0.0, own[0] - most)
    parts = [own[1] * nearer.exp(), own[2]]
    if smoothing:
        parts.append(own[3] + real * nearer)
    sums = all_reduce(torch.stack(parts), group, donated=True)
    # The largest is subtracted from the target's logit, not added to the log: it cancels well.
    losses = sums[0].log() - (1 - smoothing) * (sums[1] - most)
    if smoothing:
        losses = losses - smoothing / vocabulary * sums[2]
    ignored = targets == ignore_index
    share = torch.where(ignored, 0.0, parts[0] / sums[0])
    return share, torch.where(ignored, 0.0, losses)


def any_broken(own: Tensor, check: bool) -> bool:
    """Return whether a row has no softmax over this rank's entries, since they are -inf or one is
    not finite. Only then does the backward pass over the logits to set rows to 0."""
    if own.is_cuda and not check:
        return True  # perhaps: an answer would make the host wait
    return numbers(~own[:2].isfinite().all(), False)


def gradient(
    logits: Tensor,
    targets: Tensor,
    share: Tensor,
    weight: Tensor,
    out: Tensor,
    start: int,
    real: int,
    vocabulary: int,
    smoothing: float,
    *,
    made: bool = False,
    broken: bool = True,
) -> None:
    """(softmax − one-hot) times each token's weight into `out`, which may be the logits' memory.

    `made`: there is the softmax over this rank's words in `out` already. `broken`: some rows may
    have none.
    """
    out[:, real:] = 0.0
    if not real:
        return
    local = targets - start
    right = torch.where((local >= 0) & (local < real), (smoothing - 1) * weight, 0.0)  # (t,)
    local, scale = local.clamp(0, real - 1), share * weight
    nothing = scale == 0  # a row of -inf, here or ignored: its softmax over these words is 0/0
    direct = out.dtype == share.dtype and out is not logits
    for rows, words in chunks(logits, real, out if direct else None):
        if not made:
            torch.softmax(logits[rows, :real], -1, dtype=words.dtype, out=words)
        words.mul_(scale[rows, None])
        if broken:
            words.masked_fill_(nothing[rows, None], 0.0)
        if smoothing:
            words -= smoothing / vocabulary * weight[rows, None]
        words.scatter_add_(-1, local[rows, None], right[rows, None])
        if not direct:
            out[rows, :real] = words


def finite(most: Tensor) -> Tensor:
    """The largest of each row as it can be taken off: 0 where the row is all -inf."""
    return torch.where(most == -math.inf, 0.0, most)


def chunks(logits: Tensor, real: int, out: Tensor | None):
    """Slices of tokens, few enough that their logits stay in a cache, each with memory for as many
    numbers of the `real` words: in `out`, or, where that is None, one buffer for all."""
    tokens, width = logits.shape
    at_once = _CHUNK_ON_GPU if logits.is_cuda else _CHUNK
    step = min(tokens, max(1, at_once // max(1, width)))
    if out is None:  # beside the logits of so many tokens, a part of as much again and no more
        step = min(step, -(-tokens // 4))
    elif real < width:  # torch fills rows with gaps between them through memory of its own
        step = min(step, max(-(-tokens // 16), _LEAST // width))
    buffer = logits.new_empty((step, real), dtype=wide(logits)) if out is None else None
    for i in range(0, tokens, max(1, step)):
        rows = slice(i, min(tokens, i + step))
        yield rows, out[rows, :real] if buffer is None else buffer[: rows.stop - i]
