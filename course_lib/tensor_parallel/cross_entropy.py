"""Cross-entropy of logits sharded over the vocabulary, which sends three values per token.

A rank knows its largest logit, its sum of exponentials and possibly the target's logit. Two small
all-reduces combine these values. The backward pass, softmax minus one-hot, sends nothing.
`three_sums` shows the idea; `cross_entropy` needs only two messages and little memory. Lesson 07.
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
from course_lib.tensor_parallel.conjugates import reduce
from course_lib.tensor_parallel.kernel_choice import kernels_for
from course_lib.tensor_parallel.loss_checks import OwnEntries, check_not_refused, checked, wide

IGNORED = -100  # as in torch
_CHUNK = 1 << 19  # elements processed at once: they fit in a cache and bound the memory
_LEAST = 1 << 15  # fewer elements are not worth a chunk
_CHUNK_ON_GPU = 1 << 26  # on a GPU, launching a small chunk costs more than its computation


def three_sums(logits: Tensor, targets: Tensor, start: int, group: Group) -> Tensor:
    """(t, v/tp) logits of this rank, whose first entry is `start` -> (t,) losses."""
    m = all_reduce(logits.detach().amax(-1), group, "max")  # (t,)
    S = reduce((logits - m[:, None]).exp().sum(-1), group)  # (t,)
    local = targets - start
    here = (local >= 0) & (local < logits.shape[-1])
    some = logits.gather(-1, local.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0]
    l_y = reduce(torch.where(here, some, 0.0), group)  # (t,)
    return S.log() + m - l_y


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
    """Compute torch's cross_entropy for this rank's logits (…, v/tp) and targets (…), global ids.

    `vocabulary` is the number of real entries, and `padded` the number of logits over all ranks, if
    larger. Padding is ignored. A mean over no token is 0. `check` refuses targets out of range and
    ranks whose arguments differ from the others'; on a GPU, the host must wait for this.
    """
    options = (vocabulary, padded, ignore_index, label_smoothing, reduction, check)
    flat, part = checked("logits", logits, logits.shape[-1], targets, group, *options)
    keep = torch.is_grad_enabled() and logits.requires_grad
    rows = logits.reshape(flat.numel(), logits.shape[-1])  # (t, v/tp)
    losses = _CrossEntropy.apply(rows, flat, group, keep, part)
    return reduced(losses, targets, ignore_index, reduction)


def reduced(losses: Tensor, targets: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """(t,) losses, 0 where ignored -> a scalar, or one loss per target (…) without reduction."""
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
        # The softmax over this rank's entries uses the memory of the gradient. In bf16 it would be
        # rounded too early there, so it is recomputed. Kernels keep no softmax, because they
        # compute it on the way from the logits to the gradient.
        kernels = kernels_for(logits)
        keep = keep and kernels is None
        softmax = torch.empty_like(logits) if keep and logits.dtype == wide(logits) else None
        if kernels is None:
            stats = local_statistics(logits, targets, part, softmax)
        else:
            start, real, smoothing = part.start, part.real, part.smoothing
            stats = kernels.local_statistics(logits, targets, start, real, smoothing)
        share, losses = combine(stats, targets, group, part)
        ctx.save_for_backward(logits, targets, None if kernels is None else stats, share)
        ctx.kernels, ctx.broken = kernels, kernels is None and any_broken(stats, part.check)
        ctx.made, ctx.part = softmax, part
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        logits, targets, stats, share = ctx.saved_tensors
        softmax, ctx.made = ctx.made, None  # a second backward recomputes it from the logits
        out = torch.empty_like(logits) if softmax is None else softmax  # (t, v/tp)
        weight = torch.where(targets == ctx.part.ignore_index, 0.0, grad.to(share.dtype))  # (t,)
        if ctx.kernels is None:
            how = {"filled": softmax is not None, "broken": ctx.broken}
            gradient(logits, targets, share, weight, out, ctx.part, **how)
        else:
            ctx.kernels.gradient(logits, targets, stats, share, weight, out, *ctx.part.of_gradient)
        return out, None, None, None, None


def local_statistics(
    logits: Tensor, targets: Tensor, part: OwnEntries, keep: Tensor | None = None
) -> Tensor:
    """(t, v/tp) local logits -> (4, t): their maximum, the sum of exponentials relative to it, the
    target's logit or 0, and, with label smoothing, the sum of logits relative to the maximum. The
    softmax over this rank's entries is written to `keep`."""
    start, real = part.start, part.real
    stats = logits.new_zeros((4, logits.shape[0]), dtype=wide(logits))
    local_max, local_sumexp, target_logit, logit_sum = stats  # views, filled below
    local_max.fill_(-math.inf)
    if not real:
        return stats
    for rows, buffer in chunks(logits, real, keep):
        words = logits[rows, :real]  # (chunk, real)
        torch.softmax(words, -1, dtype=stats.dtype, out=buffer)
        local_max[rows] = words.amax(-1)
        # The largest exponential is 1, so the maximum of the softmax is 1/S, and S its reciprocal.
        local_sumexp[rows] = buffer.amax(-1).reciprocal_()
        local = targets[rows] - start
        here = (local >= 0) & (local < real)
        some = words.gather(-1, local.clamp(0, real - 1)[:, None])[:, 0]
        target_logit[rows] = torch.where(here, some, 0.0)
        if part.smoothing:
            logit_sum[rows] = (words - finite(local_max[rows])[:, None]).sum(-1)
    local_sumexp.masked_fill_(local_max == -math.inf, 0.0)  # such a row's softmax is 0/0
    return stats


def combine(
    stats: Tensor, targets: Tensor, group: Group, part: OwnEntries
) -> tuple[Tensor, Tensor]:
    """(4, t) of each rank -> (t,) this rank's share of each token's probability, and (t,) losses,
    by two all-reduces. The local softmax times this share is the full softmax."""
    local_max, local_sumexp, target_logit, logit_sum = stats
    m = all_reduce(local_max, group, "max")
    if part.check:
        check_not_refused(m, group)
    # Sums must be relative to the same logit, so each is rescaled to the largest of all ranks.
    nearer = torch.where(local_max == -math.inf, 0.0, local_max - m)
    terms = [local_sumexp * nearer.exp(), target_logit]
    if part.smoothing:
        terms.append(logit_sum + part.real * nearer)
    S, l_y, *sum_of_logits = all_reduce(torch.stack(terms), group, donated=True)
    # The largest is subtracted from the target's logit, so that large terms cancel first.
    losses = S.log() - (1 - part.smoothing) * (l_y - m)
    if part.smoothing:
        losses = losses - part.smoothing / part.vocabulary * sum_of_logits[0]
    ignored = targets == part.ignore_index
    share = torch.where(ignored, 0.0, terms[0] / S)
    return share, torch.where(ignored, 0.0, losses)


def any_broken(stats: Tensor, check: bool) -> bool:
    """Return True if any row has no softmax over this rank's entries, because all are -inf or one
    is NaN or +inf. Only then must the backward pass set rows to 0."""
    if stats.is_cuda and not check:
        return True  # possibly, because an exact answer would block the host
    return numbers(~stats[:2].isfinite().all(), False)


def gradient(
    logits: Tensor,
    targets: Tensor,
    share: Tensor,
    weight: Tensor,
    out: Tensor,
    part: OwnEntries,
    *,
    filled: bool = False,
    broken: bool = True,
) -> None:
    """Write (softmax − one-hot) times each token's weight to `out`, which may be the logits.

    With `filled`, `out` already has the softmax over this rank's entries. With `broken`, some rows
    may have no softmax.
    """
    start, real, vocabulary, smoothing = part.of_gradient
    out[:, real:] = 0.0
    if not real:
        return
    local = targets - start
    right = torch.where((local >= 0) & (local < real), (smoothing - 1) * weight, 0.0)  # (t,)
    local, scale = local.clamp(0, real - 1), share * weight
    nothing = scale == 0  # ignored, or a row of -inf, whose softmax here is 0/0
    direct = out.dtype == share.dtype and out is not logits
    for rows, words in chunks(logits, real, out if direct else None):
        if not filled:
            torch.softmax(logits[rows, :real], -1, dtype=words.dtype, out=words)
        words.mul_(scale[rows, None])
        if broken:
            words.masked_fill_(nothing[rows, None], 0.0)
        if smoothing:
            words -= smoothing / vocabulary * weight[rows, None]
        words.scatter_add_(-1, local[rows, None], right[rows, None])
        if not direct:
            out[rows, :real] = words


def finite(maximum: Tensor) -> Tensor:
    """Return each row's maximum for a subtraction, but 0 if the row is all -inf."""
    return torch.where(maximum == -math.inf, 0.0, maximum)


def chunks(logits: Tensor, real: int, out: Tensor | None):
    """Yield slices of tokens whose logits fit in a cache, each with memory for the `real` entries
    of its tokens, taken from `out` or, if `out` is None, from one buffer for all slices."""
    tokens, width = logits.shape
    at_once = _CHUNK_ON_GPU if logits.is_cuda else _CHUNK
    step = min(tokens, max(1, at_once // max(1, width)))
    if out is None:  # the buffer has at most a quarter of the tokens
        step = min(step, -(-tokens // 4))
    elif real < width:  # torch fills rows with gaps through temporary memory
        step = min(step, max(-(-tokens // 16), _LEAST // width))
    buffer = logits.new_empty((step, real), dtype=wide(logits)) if out is None else None
    for i in range(0, tokens, max(1, step)):
        rows = slice(i, min(tokens, i + step))
        yield rows, out[rows, :real] if buffer is None else buffer[: rows.stop - i]
