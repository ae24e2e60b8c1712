"""What one rank computes in a forward and a backward: flops of products, bytes that memory moves.

Products are bounded by arithmetic, and read their weights; norms, activations, sums and the loss
are bounded by memory. Tensor parallelism shares out the first and only a part of the rest.
Lesson 15.
"""

from __future__ import annotations

from typing import NamedTuple

from course_lib.estimate.over_tp import part_of
from course_lib.gpt import Config


class Work(NamedTuple):
    """Flops of products, `attention` of them in its own two, which a fused kernel makes at another
    rate; and bytes that weights and every other operation take."""

    flops: float = 0.0
    moved: float = 0.0
    attention: float = 0.0

    def plus(self, other: Work, times: int = 1) -> Work:
        return Work(*(own + times * more for own, more in zip(self, other, strict=True)))


class Passes(NamedTuple):
    """One micro-batch on one rank; a block that is recomputed is in `backward` a second time."""

    forward: Work
    backward: Work

    @property
    def flops(self) -> float:
        return self.forward.flops + self.backward.flops


def passes(
    config: Config,
    rows: int,
    length: int,
    *,
    width: int = 4,
    tp: int = 1,
    rank: int = 0,
    sequence: bool = False,
) -> Passes:
    """Forward and backward of `rows` sequences on rank `rank` of `tp`, `width` bytes a number.

    Attention counts all pairs of tokens, as published figures do.
    """
    part = part_of(config, rows, length, tp, rank, sequence=sequence)
    tokens, h, inner, words = rows * length, config.hidden, part.inner, part.words
    q, kv = part.heads * config.head_size, part.kv_heads * config.head_size
    stream = part.tokens * h  # elements between the layers
    products, act, act_back = (3, 5, 9) if config.activation == "swiglu" else (2, 2, 3)
    mask = 3 if config.dropout else 0
    # What a gather lays side by side, and a scatter takes apart, is read and written once more.
    joined = 4 * 2 * tokens * h if sequence and tp > 1 else 0

    # A block: two flops for each multiplication and addition; every pair of tokens is a score, and
    # a value summed by it.
    pairs = 2 * tokens * 2 * length * q
    flops = 2 * tokens * (h * (q + 2 * kv) + q * h + products * h * inner) + pairs
    weights = width * h * (2 * q + 2 * kv + products * inner)
    core = 2 * q + 2 * kv  # into attention and out of it
    turned = 2 * (q + kv) if config.position == "rotary" else 0
    # Norms, sums, masks; attention, its heads laid side by side again, and the activation.
    moved = stream * (2 * 2 + 2 * 3 + 2 * mask)
    moved += tokens * (core + 2 * q + turned + act * inner) + joined
    forward = Work(flops, width * moved + weights, pairs)
    moved = stream * (2 * 5 + 2 * 3 + 2 * mask)
    moved += tokens * (2 * core + 2 * q + turned + act_back * inner) + joined
    if config.bias:  # a bias's gradient is a sum over the tokens of what flows by
        moved += 2 * stream + tokens * (q + 2 * kv + inner)
    # A weight is read, its gradient written, and read again on its way into its bucket.
    backward = Work(2 * flops, width * moved + 4 * weights, 2 * pairs)
    if config.recompute:
        backward = backward.plus(forward)

    # The ends: the lookup, the last norm, and the loss: its logits' largest, and their softmax.
    head = 2 * tokens * h * words
    looked = 2 + (3 if config.position == "learned" else 0) + mask
    moved = stream * (looked + 2) + 3 * tokens * words + words * h
    before = Work(head, width * moved).plus(forward, config.layers)
    # The table's gradient is made, and summed where it is tied.
    moved = stream * (2 + 5 + mask) + 2 * tokens * words + words * h * (7 if config.tied else 5)
    after = Work(2 * head, width * moved).plus(backward, config.layers)
    return Passes(before, after)


def update_bytes(params: float, *, width: int, master: bool) -> float:
    """What an AdamW step reads and writes for so many parameters, in one pass: the gradient's norm
    and its clipping, value and both moments; with a master copy also the gradient's widening and
    the narrowed value."""
    wide = 4 if master else width
    norm, step = 3 * wide, 7 * wide
    return params * (norm + step + (2 * width + wide if master else 0))
