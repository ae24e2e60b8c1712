"""The loss's two passes over the logits as Triton kernels, each of which reads a logit once.

Each lane of a program keeps its own maximum and sum (online softmax), so that one pass sums a row
and the lanes are combined once, at the end. Sums are in float32 for all dtypes. This file is
imported only if kernels_for chooses it, because triton is part of torch's GPU builds. Lesson 07.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_WARPS = 4
_TILE = 4096  # logits of one row that a program processes at once: 32 for each of its threads
_ONE_LOAD = 16  # the most bytes that a thread loads at once
_ANY_NUMBER = ["start", "real", "stats_stride"]  # new values need no new compilation
_ANY_ADDRESS = ["targets", "stats", "share", "weight"]


def local_statistics(
    logits: Tensor, targets: Tensor, start: int, real: int, smoothing: float
) -> Tensor:
    """(t, v/tp) local logits -> (4, t) values, as in cross_entropy.local_statistics."""
    stats = logits.new_empty((4, len(logits)), dtype=torch.float32)
    lanes = 32 * _WARPS * _ONE_LOAD // logits.element_size()
    with torch.cuda.device_of(logits):
        row_numbers[(len(logits),)](
            logits, targets.contiguous(), stats,
            logits.stride(0), stats.stride(0), start, real, logits.shape[1],
            SMOOTHED=smoothing > 0, ROWS=_TILE // lanes, LANES=lanes, num_warps=_WARPS,
        )  # fmt: skip
    return stats


def gradient(
    logits: Tensor,
    targets: Tensor,
    stats: Tensor,
    share: Tensor,
    weight: Tensor,
    out: Tensor,
    start: int,
    real: int,
    vocabulary: int,
    smoothing: float,
) -> None:
    """Write (softmax − one-hot) times each token's weight into `out`, like cross_entropy.gradient,
    but from the logits and the (4, t) values of `local_statistics`."""
    tokens, width = logits.shape
    with torch.cuda.device_of(logits):
        row_gradients[(tokens * triton.cdiv(width, _TILE),)](
            logits, targets.contiguous(), stats, share, weight, out,
            logits.stride(0), out.stride(0), stats.stride(0), start, real, width,
            1 - smoothing, smoothing / vocabulary, SMOOTHED=smoothing > 0, TILE=_TILE,
            num_warps=_WARPS,
        )  # fmt: skip


@triton.jit
def _finite(most):
    return tl.where(most == float("-inf"), 0.0, most)


@triton.jit
def _with_tile(
    most, total, below, seen, row, first, real, width,
    CUT: tl.constexpr, SMOOTHED: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Update each lane's values, (LANES,), with the lane's ROWS logits in a tile."""
    columns = first + tl.arange(0, ROWS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    if CUT:
        x = tl.load(row + columns, mask=columns < width, other=float("-inf")).to(tl.float32)
        x = tl.where(columns < real, x, float("-inf"))
    else:
        x = tl.load(row + columns).to(tl.float32)
    higher = tl.maximum(most, tl.max(x, 0))
    base = _finite(higher)
    total = total * tl.exp(most - base) + tl.sum(tl.exp(x - base[None, :]), 0)
    if SMOOTHED:
        each = tl.where(columns < real, 1.0, 0.0)
        under = tl.where(columns < real, each * (x - base[None, :]), 0.0)
        # Earlier terms were relative to a different logit.
        below = below + seen * (_finite(most) - base) + tl.sum(under, 0)
        seen = seen + tl.sum(each, 0)
    return higher, total, below, seen


@triton.jit(do_not_specialize=_ANY_NUMBER, do_not_specialize_on_alignment=_ANY_ADDRESS)
def row_numbers(
    logits, targets, stats, stride, stats_stride, start, real, width,
    SMOOTHED: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Compute the four values of one token in one pass over this rank's logits."""
    token = tl.program_id(0).to(tl.int64)
    row = logits + token * stride
    local = tl.load(targets + token) - start
    most = tl.full((LANES,), float("-inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    below = tl.zeros((LANES,), tl.float32)
    seen = tl.zeros((LANES,), tl.float32)
    full = real // (ROWS * LANES) * (ROWS * LANES)
    for first in range(0, full, ROWS * LANES):
        most, total, below, seen = _with_tile(
            most, total, below, seen, row, first, real, width,
            False, SMOOTHED, ROWS, LANES,
        )  # fmt: skip
    if full < real:
        most, total, below, seen = _with_tile(
            most, total, below, seen, row, full, real, width,
            True, SMOOTHED, ROWS, LANES,
        )  # fmt: skip
    here = (local >= 0) & (local < real)
    of_target = tl.load(row + local, mask=here, other=0.0).to(tl.float32)
    highest = tl.max(most, 0)
    base = _finite(highest)
    tl.store(stats + token, highest)
    tl.store(stats + stats_stride + token, tl.sum(total * tl.exp(most - base), 0))
    tl.store(stats + 2 * stats_stride + token, of_target)
    tl.store(stats + 3 * stats_stride + token, tl.sum(below + seen * (_finite(most) - base), 0))


@triton.jit(do_not_specialize=_ANY_NUMBER, do_not_specialize_on_alignment=_ANY_ADDRESS)
def row_gradients(
    logits, targets, stats, share, weight, out,
    stride, out_stride, stats_stride, start, real, width, of_target, each,
    SMOOTHED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute one tile of one token's row of the gradient, with zeros in the padding."""
    tiles = tl.cdiv(width, TILE)
    token = (tl.program_id(0) // tiles).to(tl.int64)
    columns = tl.program_id(0) % tiles * TILE + tl.arange(0, TILE)
    x = tl.load(logits + token * stride + columns, mask=columns < width, other=0.0).to(tl.float32)
    local = tl.load(targets + token) - start
    local = tl.where(local < real, tl.maximum(local, -1), -1).to(tl.int32)  # any id fits 32 bits
    pull = tl.load(weight + token)
    scale = tl.load(share + token) * pull
    nothing = scale == 0.0  # a row of -inf, here or ignored
    most, total = tl.load(stats + token), tl.load(stats + stats_stride + token)
    words = tl.where(nothing, 0.0, tl.exp(x - most) * (scale / total))
    if SMOOTHED:
        words -= each * pull
    words = tl.where(columns == local, words - of_target * pull, words)
    words = tl.where(columns < real, words, 0.0)
    words = words.to(out.dtype.element_ty)
    tl.store(out + token * out_stride + columns, words, mask=columns < width)
