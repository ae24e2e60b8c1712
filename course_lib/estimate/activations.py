"""What a forward of our decoder keeps for its backward, tensor by tensor, in closed form.

Counted from what each operation's gradient reads: a product its input, a norm its input, attention
q, k, v and its output. Lesson 06 counts a block, lesson 12 adds it to the states.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.estimate.over_tp import norm_bytes, part_of
from course_lib.gpt import Config

NARROW = 4  # bytes of a norm's and attention's own sums, whatever the model's width is
RNG = 5056  # bytes: the state of the CPU's generator, kept for each block that is run again


@dataclass(frozen=True)
class ActivationBytes:
    """Bytes on one rank, for `rows` sequences of `length` tokens.

    `attention` and `mlp` are one block's halves, each with its norm; `entry` a block's input, which
    is in `attention` too; `ends` what is kept behind the blocks and before them; `logits` one copy
    of them, of which the loss keeps one.
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
        """Of one block, between its forward and its backward."""
        return self.entry + RNG if self.recompute else self.block

    @property
    def total(self) -> int:
        """When the forward has ended and the loss is there."""
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
    """The bytes of a training forward on rank `rank` of `tp`, `width` for a number.

    `sequence` and `keep` are those of `parallelize`, `fused` that of the loss: it keeps the head's
    input and no logits. Not for attention dropout, under which torch takes another
    way through attention, with all pairs of tokens in memory; nor under autocast, which keeps
    numbers of two widths.
    """
    part = part_of(config, rows, length, tp, rank, sequence=sequence)
    if config.attention_dropout:
        raise ValueError(
            f"attention_dropout={config.attention_dropout}: with it torch keeps all pairs of "
            "tokens, in a way that depends on the device; estimate with attention_dropout=0"
        )
    tokens, h, d = rows * length, config.hidden, config.head_size
    heads, kv = part.heads, part.kv_heads
    entry = part.tokens * h * width
    joins = tokens * h * width if keep else entry  # the input of a cut product
    norm = _norm(config, part.tokens, width)
    if sequence and tp > 1:  # its weights as they went through the conjugate that sums gradients
        norm += norm_bytes(config, width)
    drop = entry if config.dropout else 0  # its mask, in the numbers' own width
    core = tokens * (heads + 2 * kv) * d * width  # q, k, v as one product gave them
    if config.position == "rotary":  # q and k turned, and the angles
        core += tokens * (heads + kv) * d * width + 2 * length * d * NARROW
        # Attention's output lies as q does, and is laid anew unless there is one head alone.
        core += tokens * heads * d * width * (heads > 1)
    core += tokens * heads * (d * width + NARROW)  # attention's output; a sum for each head
    wide = 4 if config.activation == "swiglu" else 2
    inner = wide * tokens * part.inner * width
    last = tokens * h * width if fused else joins  # the head's input: fused, it is gathered whole
    looked_up = 9 * tokens if tp > 1 else 0  # which of its rows a rank's table gives, and a mask
    loss = 12 * tokens if fused else 0  # the targets, and each token's share of the softmax
    places = 8 * length if config.position == "learned" else 0  # which positions were looked up
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
    """Beside its input: a layer norm keeps a mean and a scale a token, an RMS norm a scale and the
    scaled numbers; of 16-bit ones that and a copy in float32, in place of its input."""
    if config.norm == "layer":
        return 2 * tokens * NARROW
    return tokens * (NARROW + config.hidden * max(width, NARROW))
