"""Stretches of a decoder's backward pass, with the bytes in memory and the gradients of each.

They extend from the loss to the embedding table, with or without tensor parallelism. Lesson 12.
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
    """Layout of a parallelized model, and this rank's place in it."""

    tp: int = 1
    rank: int = 0
    sequence: bool = False
    fused: bool = False


@dataclass(frozen=True)
class BackwardStretch:
    """A stretch of the backward pass: the bytes in memory, and the gradients that it produces."""

    name: str
    activations: int
    own: int  # in addition to activations: gradients of the stream
    gradients: tuple[nn.Parameter, ...]
    uses: tuple[nn.Parameter, ...] = ()
    last: bool = False  # no stretch follows, so memory is empty when its gradients are sent


def events(
    model: GPT, rows: int, length: int, *, cut: Cut | None = None
) -> Iterator[BackwardStretch]:
    """Yield the stretches of a decoder's backward pass, from the loss to the embedding table."""
    config, whole = model.config, cut or Cut()
    width = model.norm.weight.element_size()
    one = kept(config, rows, length, width=width, **whole._asdict())
    tokens, h = rows * length, config.hidden
    part = part_of(config, rows, length, whole.tp, whole.rank, sequence=whole.sequence)
    full, stream = tokens * h * width, part.tokens * h * width  # the stream between the layers
    wide = full if whole.sequence else 0  # gradient of a gathered tensor, before its scatter
    laid = wide if rows > 1 else 0  # a copy ordered by tokens, as a message needs it
    scattered = wide + laid + (wide + stream if whole.sequence else 0)  # plus received pieces
    tied = model.head.weight is model.tokens.weight
    head, layers = model.head.weight, config.layers
    everything = one.layers * one.between + one.ends
    yield BackwardStretch(
        "loss", everything + one.logits, _of_loss(one.logits, width, cut), (), (head,)
    )
    extra = one.logits + stream + scattered + (head.nbytes if tied or whole.fused else 0)
    yield BackwardStretch("head", everything, extra, () if tied else (head,), (head,))
    later = head.nbytes if tied else 0  # the head's gradient waits for the table's
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
        if config.recompute and whole.sequence:  # up to the sum after the block
            yield BackwardStretch(
                f"{name}, recomputed", there, later + 2 * stream + scattered, (), every
            )
        yield BackwardStretch(
            f"{name}, down", there, later + stream + wide + max(laid, inner), down, every
        )
        gone, made = (4, 2) if swiglu else (2, 1)  # freed tensors of the MLP, and new gradients
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
    """Count the loss's bytes without the kept logits. torch's loss makes two copies of them. Our
    loss makes one, for the softmax and the gradient, and recomputes a 16-bit softmax in parts."""
    if cut is None:
        return 2 * logits
    return logits if width >= 4 else logits + logits * 4 // width // 4
