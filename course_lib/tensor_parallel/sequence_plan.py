"""The plan of sequence parallelism for a sharded block, whose layers gather and scatter tokens.

The modules between them (norms, dropout, positions) keep their code and see 1/tp of the tokens, so
norms' gradients are partial sums, and each rank has its own masks. Lesson 06 derives it.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from course_lib.gpt import GPT, Block, RMSNorm
from course_lib.tensor_parallel.conjugates import split
from course_lib.tensor_parallel.randomness import private
from course_lib.tensor_parallel.rank_module import RankModule
from course_lib.tensor_parallel.sequence import OwnTokens, S, Tokens, shared_once


class SharedNorm(RankModule):
    """The dense norm on this rank's tokens; one message sums the gradients of its weights."""

    def __init__(self, norm: nn.LayerNorm | RMSNorm, tokens: Tokens):
        super().__init__()
        self.weight = norm.weight
        self.register_parameter("bias", getattr(norm, "bias", None))
        self.group, self.training = tokens.group, norm.training
        self.norm = (norm,)  # in a tuple, so that its parameters are listed only once

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = shared_once(self.weight, self.bias, group=self.group)
        used = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return functional_call(self.norm[0], used, (x,))


class PrivateDropout(nn.Module):
    """Dropout on this rank's own tokens; the mask is its part of the full sequence's mask."""

    def __init__(self, dropout: nn.Dropout, tokens: Tokens):
        super().__init__()
        self.dropout, self.tokens = dropout, tokens
        self.training = dropout.training

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.dropout.p):
            return x
        start, _ = self.tokens.span()
        with private(self.tokens.group, dim=S, start=start, whole=self.tokens.length):
            return self.dropout(x)


class SplitPositions(nn.Module):
    """The position embedding of this rank's tokens; its gradient is gathered from all ranks."""

    def __init__(self, positions: nn.Embedding, tokens: Tokens):
        super().__init__()
        self.weight, self.tokens = positions.weight, tokens

    def forward(self, places: Tensor) -> Tensor:  # (s,) -> (s/tp, h), or (b, s) -> (b, s/tp, h)
        dim = places.dim() - 1
        return split(F.embedding(places, self.weight), self.tokens.group, dim, self.tokens.sizes)


def scatter_model(model: GPT, tokens: Tokens, *, keep: bool) -> GPT:
    """Apply the plan to a sharded model, in place: the weights stay, but the messages change.

    `keep` is as in `gathered_products`.
    """
    for block in model.blocks:
        scatter_block(block, tokens, keep=keep)
    if model.positions is not None:
        model.positions = SplitPositions(model.positions, tokens)
    model.dropout = PrivateDropout(model.dropout, tokens)
    model.norm = SharedNorm(model.norm, tokens)
    model.tokens.way = model.head.way = OwnTokens(tokens, keep=keep)
    return model


def scatter_block(block: Block, tokens: Tokens, *, keep: bool) -> Block:
    """Apply the plan to a sharded block, whose input and output become this rank's tokens."""
    first = block.mlp.gate_up if block.mlp.activation == "swiglu" else block.mlp.up
    for layer in (block.attention.qkv, block.attention.out, first, block.mlp.down):
        layer.way = OwnTokens(tokens, keep=keep)
    block.norm_1, block.norm_2 = SharedNorm(block.norm_1, tokens), SharedNorm(block.norm_2, tokens)
    block.dropout = PrivateDropout(block.dropout, tokens)
    return block
