"""The bytes that a forward pass of our decoder keeps for its backward pass, in closed form.

Each operation keeps what its gradient needs: products and norms keep their input, attention keeps
q, k, v and its output. Lesson 06 counts a block, and lesson 12 adds it to the states.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.estimate.over_tp import norm_bytes, part_of
from course_lib.gpt import Config

NARROW = 4  # bytes of an element in the sums of norms and attention, at any model width
RNG = 5056  # bytes of the CPU generator's state, kept for each recomputed block


@dataclass(frozen=True)
class ActivationBytes:
    """Bytes on one rank, for `rows` sequences of `length` tokens.

    `attention` and `mlp` are one block's halves, each with its norm. `entry` is a block's input,
    which is also in `attention`. `ends` is kept before and after the blocks. `logits` is one copy
    of the logits, which the loss keeps.
    """

    layers: int
    attention: int
    mlp: int
    entry: int
    ends: int
    logits: int
    recompute: bool

    @property
    def block(self) -> int:
        return self.attention + self.mlp

    @property
    def between(self) -> int:
        """Bytes of one block, between its forward and its backward pass."""
        return self.entry + RNG if self.recompute else self.block

    @property
    def total(self) -> int:
        """Bytes at the end of the forward pass, when the loss exists."""
        return self.layers * self.between + self.ends + self.logits


def kept(
    config: Config,
    rows: int,
    length: int,
    *,
    width: int = 4,
    tp: int = 1,
    rank: int = 0,
    sequence: bool = False,
    keep: bool = True,
    fused: bool = False,
) -> ActivationBytes:
    """Count the bytes that a training forward pass keeps on a rank, at `width` bytes per element.

    `sequence` and `keep` are arguments of `parallelize`. `fused` is an argument of the loss, which
    then keeps the head's input but no logits. The form covers neither attention dropout, with which
    torch keeps all pairs of tokens, nor autocast, which keeps elements of two widths.
    """
    part = part_of(config, rows, length, tp, rank, sequence=sequence)
    if config.attention_dropout:
        raise ValueError(
            f"attention_dropout={config.attention_dropout}: torch then keeps all pairs of tokens, "
            "in a way that depends on the device. Estimate with attention_dropout=0"
        )
    tokens, h, d = rows * length, config.hidden, config.head_size
    heads, kv = part.heads, part.kv_heads
    entry = part.tokens * h * width
    joins = tokens * h * width if keep else entry  # the input of a sharded product
    norm = _norm(config, part.tokens, width)
    if sequence and tp > 1:  # its weights, after the conjugate that sums gradients
        norm += norm_bytes(config, width)
    drop = entry if config.dropout else 0  # the dropout mask, in the elements' own width
    core = tokens * (heads + 2 * kv) * d * width  # q, k, v from one product
    if config.position == "rotary":  # rotated q and k, and the angles
        core += tokens * (heads + kv) * d * width + 2 * length * d * NARROW
        # Attention's output has the memory layout of q, and is copied if there are several heads.
        core += tokens * heads * d * width * (heads > 1)
    core += tokens * heads * (d * width + NARROW)  # attention's output, and a sum for each head
    wide = 4 if config.activation == "swiglu" else 2
    inner = wide * tokens * part.inner * width
    last = tokens * h * width if fused else joins  # the head's input, gathered if fused
    looked_up = 9 * tokens if tp > 1 else 0  # indices of a rank's table, and a mask
    loss = 12 * tokens if fused else 0  # the targets, and each token's share of the softmax
    places = 8 * length if config.position == "learned" else 0  # the indices of positions
    return ActivationBytes(
        config.layers,
        attention=entry + norm + joins + core + drop,
        mlp=entry + norm + joins + inner + drop,
        entry=entry,
        ends=entry + norm + last + places + drop + looked_up + loss,
        logits=0 if fused else tokens * part.words * width,
        recompute=config.recompute,
    )


def _norm(config: Config, tokens: int, width: int) -> int:
    """Count a norm's bytes without its input. A layer norm keeps a mean and a scale per token; an
    RMS norm keeps a scale and scaled elements (in 16 bits, a float32 copy replaces its input)."""
    if config.norm == "layer":
        return 2 * tokens * NARROW
    return tokens * (NARROW + config.hidden * max(width, NARROW))
