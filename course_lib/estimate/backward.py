"""The backward of a decoder in stretches: what lies in memory in each, which gradients it gives.

From the loss down to the table of words, cut over tp or not. Lesson 12.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from course_lib.estimate.activations import NARROW, kept
from course_lib.estimate.over_tp import part_of
from course_lib.gpt import GPT


class Cut(NamedTuple):
    """How a model was parallelized, and which rank of that this is."""

    tp: int = 1
    rank: int = 0
    sequence: bool = False
    fused: bool = False


@dataclass(frozen=True)
class BackwardStretch:
    """A stretch of the backward: what lies in memory during it, which gradients it gives."""

    name: str
    activations: int
    own: int  # beside the activations: gradients of what flows through
    gradients: tuple[nn.Parameter, ...]
    uses: tuple[nn.Parameter, ...] = ()
    last: bool = False  # nothing flows on: when its gradients are sent, nothing else is there


def events(
    model: GPT, rows: int, length: int, *, cut: Cut | None = None
) -> Iterator[BackwardStretch]:
    """The backward of a decoder in stretches, from the loss to the table of words."""
    config, whole = model.config, cut or Cut()
    width = model.norm.weight.element_size()
    one = kept(config, rows, length, width=width, **whole._asdict())
    tokens, h = rows * length, config.hidden
    part = part_of(config, rows, length, whole.tp, whole.rank, sequence=whole.sequence)
    full, stream = tokens * h * width, part.tokens * h * width  # what flows between the layers
    wide = full if whole.sequence else 0  # of what was gathered, on its way to be scattered
    laid = wide if rows > 1 else 0  # laid by tokens, as a message takes it
    scattered = wide + laid + (wide + stream if whole.sequence else 0)  # and what arrives, the sum
    tied = model.head.weight is model.tokens.weight
    head, layers = model.head.weight, config.layers
    everything = one.layers * one.between + one.ends
    yield BackwardStretch(
        "loss", everything + one.logits, _of_loss(one.logits, width, cut), (), (head,)
    )
    extra = one.logits + stream + scattered + (head.nbytes if tied or whole.fused else 0)
    yield BackwardStretch("head", everything, extra, () if tied else (head,), (head,))
    later = head.nbytes if tied else 0  # what the head gave waits for what the table will
    norm = tuple(model.norm.parameters())
    norms = stream if config.norm == "layer" else (4 + (width < 4)) * NARROW * part.tokens * h
    yield BackwardStretch("norm", everything, later + stream + norms, norm, norm)
    swiglu = config.activation == "swiglu"
    inner = part.inner * tokens * width
    narrow = tokens * (part.heads + 2 * part.kv_heads) * config.head_size * width
    for i in reversed(range(layers)):
        block, below = model.blocks[i], i * one.between
        every = tuple(block.parameters())
        down = tuple(block.mlp.down.parameters())
        first = block.mlp.gate_up if swiglu else block.mlp.up
        up = (*first.parameters(), *block.norm_2.parameters())
        rest = tuple(p for p in every if p not in {*down, *up})
        name, there = f"block {i}", below + one.block
        if config.recompute and whole.sequence:  # up to the sum behind the block
            yield BackwardStretch(
                f"{name}, run again", there, later + 2 * stream + scattered, (), every
            )
        yield BackwardStretch(
            f"{name}, down", there, later + stream + wide + max(laid, inner), down, every
        )
        gone, made = (4, 2) if swiglu else (2, 1)  # of what the MLP has kept; its input's gradient
        work = later + stream + max(norms, stream + scattered + made * inner)
        yield BackwardStretch(f"{name}, up", there - gone * inner, work, up, every)
        there = below + one.attention
        work = later + stream + max(norms, stream + scattered + 2 * narrow)
        yield BackwardStretch(f"{name}, attention", there, work, rest, every)
    if model.positions is not None:
        yield BackwardStretch("positions", 0, later + stream, tuple(model.positions.parameters()))
    yield BackwardStretch(
        "tokens", 0, later + stream + wide + laid, (model.tokens.weight,), last=True
    )


def _of_loss(logits: int, width: int, cut: Cut | None) -> int:
    """Beside the logits that are kept: torch's loss makes two more, ours one, in which the softmax
    lies until it is the gradient; of 16-bit logits it makes the softmax again, a part at a time."""
    if cut is None:
        return 2 * logits
    return logits if width >= 4 else logits + logits * 4 // width // 4
