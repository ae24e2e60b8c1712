"""What one rank computes in a forward and a backward: flops of products, bytes that memory moves.

Products are bounded by arithmetic, and read their weights; norms, activations, sums and the loss
are bounded by memory. Tensor parallelism shares out the first and only a part of the rest.
Lesson 15.
"""

from __future__ import annotations

from typing import NamedTuple

from course_lib.estimate.over_tp import check_cut
from course_lib.gpt import Config
from course_lib.layout import cut
from course_lib.tensor_parallel.qkv_layout import shares


class Work(NamedTuple):
    """Flops of products, and bytes that their weights and every other operation take."""

    flops: float = 0.0
    moved: float = 0.0

    def plus(self, other: Work, times: int = 1) -> Work:
        return Work(self.flops + times * other.flops, self.moved + times * other.moved)


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
    check_cut(config, length, tp, rank)
    of = _Part(config, rows, length, width, tp, rank, sequence)
    products, layers = of.block_flops(), config.layers
    forward = Work(products, of.block_forward())
    backward = Work(2 * products, of.block_backward())
    if config.recompute:
        backward = backward.plus(forward)
    head = of.head_flops()
    before = Work(head, of.ends_forward()).plus(forward, layers)
    after = Work(2 * head, of.ends_backward()).plus(backward, layers)
    return Passes(before, after)


def update_bytes(params: float, *, width: int, master: bool) -> float:
    """What an AdamW step reads and writes for so many parameters, in one pass: the gradient's norm
    and its clipping, value and both moments; with a master copy also the gradient's widening and
    the narrowed value."""
    wide = 4 if master else width
    norm, step = 3 * wide, 7 * wide
    return params * (norm + step + (2 * width + wide if master else 0))


class _Part:
    """One rank's part of a model, in numbers."""

    def __init__(
        self, config: Config, rows: int, length: int, width: int, tp: int, rank: int, sequence: bool
    ):
        self.config, self.width, self.length = config, width, length
        self.tokens = rows * length
        self.own = rows * cut(length, tp)[rank] if sequence else self.tokens  # between the layers
        share = shares(config.heads, config.kv_heads, tp)[rank]
        self.q = share.heads * config.head_size
        self.kv = share.kv_heads * config.head_size
        self.inner = cut(config.inner, tp)[rank]
        self.words = cut(config.vocabulary, tp)[rank]
        self.swiglu = config.activation == "swiglu"
        # What a gather lays side by side, and a scatter takes apart, is read and written once more.
        self.joined = 2 * self.tokens * config.hidden if sequence and tp > 1 else 0

    def block_flops(self) -> float:
        """Two for each multiplication and addition of a block's products, of the forward."""
        h = self.config.hidden
        joined = h * (self.q + 2 * self.kv)
        pairs = 2 * self.length * self.q  # scores, and values summed by them
        mlp = (3 if self.swiglu else 2) * h * self.inner
        return 2 * self.tokens * (joined + pairs + self.q * h + mlp)

    def block_weights(self) -> float:
        """Bytes of the weights that a block's products read."""
        mlp = (3 if self.swiglu else 2) * self.inner
        return self.width * self.config.hidden * (2 * self.q + 2 * self.kv + mlp)

    def head_flops(self) -> float:
        return 2 * self.tokens * self.config.hidden * self.words

    def block_forward(self) -> float:
        stream = self.own * self.config.hidden
        between = 2 * 2 + 2 * 3 + (2 * 3 if self.config.dropout else 0)  # norms, sums, masks
        core = (self.q + 2 * self.kv) + self.q  # in and out
        laid = 2 * self.q  # heads side by side again
        turned = 2 * (self.q + self.kv) if self.config.position == "rotary" else 0
        bend = (5 if self.swiglu else 2) * self.inner
        own = self.tokens * (core + laid + turned + bend)
        return self.width * (stream * between + own + 4 * self.joined) + self.block_weights()

    def block_backward(self) -> float:
        stream = self.own * self.config.hidden
        between = 2 * 5 + 2 * 3 + (2 * 3 if self.config.dropout else 0)
        core = 2 * (self.q + 2 * self.kv) + 2 * self.q
        turned = 2 * (self.q + self.kv) if self.config.position == "rotary" else 0
        bend = (9 if self.swiglu else 3) * self.inner
        cut_part = core + 2 * self.q + turned + bend
        if self.config.bias:  # a bias's gradient is a sum over the tokens of what flows by
            cut_part += self.q + 2 * self.kv + self.inner
            between += 2
        moved = self.width * (stream * between + self.tokens * cut_part + 4 * self.joined)
        # A weight is read, its gradient written, and read again on its way into its bucket.
        return moved + 4 * self.block_weights()

    def ends_forward(self) -> float:
        """The lookup, the last norm, and the loss: its logits' largest, and their softmax."""
        looked = 2 + (3 if self.config.position == "learned" else 0)
        looked += 3 if self.config.dropout else 0
        stream = self.own * self.config.hidden * (looked + 2)
        table = self.words * self.config.hidden
        return self.width * (stream + 3 * self.tokens * self.words + table)

    def ends_backward(self) -> float:
        table = self.words * self.config.hidden  # its gradient is made, and summed where it is tied
        stream = self.own * self.config.hidden * (2 + 5 + (3 if self.config.dropout else 0))
        return self.width * (
            stream + 2 * self.tokens * self.words + table * (7 if self.config.tied else 5)
        )
