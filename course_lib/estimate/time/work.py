"""The work of one rank in a forward and a backward pass: flops of products, bytes moved.

Arithmetic limits products, which read their weights too. Memory limits norms, activations, sums and
the loss. Tensor parallelism shards all products, but only a part of the rest. Lesson 15.
"""

from __future__ import annotations

from typing import NamedTuple

from course_lib.estimate.over_tp import part_of
from course_lib.gpt import Config


class Work(NamedTuple):
    """Flops of products (of which `attention` are computed at the fused kernel's separate rate),
    and bytes moved for weights and by all other operations."""

    flops: float = 0.0
    moved: float = 0.0
    attention: float = 0.0

    def plus(self, other: Work, times: int = 1) -> Work:
        return Work(*(own + times * more for own, more in zip(self, other, strict=True)))


class Passes(NamedTuple):
    """Work of one micro-batch on one rank; `backward` includes the recomputation of blocks."""

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
    """Count forward and backward work of `rows` sequences on a rank, with `width` bytes per
    element.

    For attention, all pairs of tokens are counted, as in published figures.
    """
    part = part_of(config, rows, length, tp, rank, sequence=sequence)
    tokens, h, inner, words = rows * length, config.hidden, part.inner, part.words
    q, kv = part.heads * config.head_size, part.kv_heads * config.head_size
    stream = part.tokens * h  # elements between the layers
    products, act, act_back = (3, 5, 9) if config.activation == "swiglu" else (2, 2, 3)
    mask = 3 if config.dropout else 0
    # A gather joins tensors and a scatter splits them, so they are read and written once more.
    joined = 4 * 2 * tokens * h if sequence and tp > 1 else 0

    # A block has two flops for each multiplication and addition. Every pair of tokens has a score
    # and a value that is weighted by it.
    pairs = 2 * tokens * 2 * length * q
    flops = 2 * tokens * (h * (q + 2 * kv) + q * h + products * h * inner) + pairs
    weights = width * h * (2 * q + 2 * kv + products * inner)
    core = 2 * q + 2 * kv  # inputs and outputs of attention
    turned = 2 * (q + kv) if config.position == "rotary" else 0
    # Norms, sums, masks, attention with its heads joined again, and the activation.
    moved = stream * (2 * 2 + 2 * 3 + 2 * mask)
    moved += tokens * (core + 2 * q + turned + act * inner) + joined
    forward = Work(flops, width * moved + weights, pairs)
    moved = stream * (2 * 5 + 2 * 3 + 2 * mask)
    moved += tokens * (2 * core + 2 * q + turned + act_back * inner) + joined
    if config.bias:  # a bias's gradient is a sum over the tokens
        moved += 2 * stream + tokens * (q + 2 * kv + inner)
    # A weight is read. Its gradient is written, and read again when its bucket is filled.
    backward = Work(2 * flops, width * moved + 4 * weights, 2 * pairs)
    if config.recompute:
        backward = backward.plus(forward)

    # The ends are the lookup, the last norm, and the loss with its largest logit and softmax.
    head = 2 * tokens * h * words
    looked = 2 + (3 if config.position == "learned" else 0) + mask
    moved = stream * (looked + 2) + 3 * tokens * words + words * h
    before = Work(head, width * moved).plus(forward, config.layers)
    # The table's gradient is computed, and summed with the head's if they are tied.
    moved = stream * (2 + 5 + mask) + 2 * tokens * words + words * h * (7 if config.tied else 5)
    after = Work(2 * head, width * moved).plus(backward, config.layers)
    return Passes(before, after)


def update_bytes(params: float, *, width: int, master: bool) -> float:
    """Count the bytes that an AdamW step reads and writes in one pass: the gradient's norm and
    clipping, the value and both moments. With a master copy, the widened gradient and the narrowed
    value are added."""
    wide = 4 if master else width
    norm, step = 3 * wide, 7 * wide
    return params * (norm + step + (2 * width + wide if master else 0))
