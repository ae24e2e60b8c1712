"""The plan of sequence parallelism, laid over a dense block: cut layers that gather and scatter.

What stands between them, norms and dropout and positions, keeps its code and sees 1/tp of the
tokens; a norm's gradients are then partial sums, a mask is the rank's own. Lesson 06 derives it.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from course_lib.gpt import GPT, Block, RMSNorm
from course_lib.tensor_parallel.conjugates import reduce_scatter, split
from course_lib.tensor_parallel.embedding import (
    Loss,
    VocabularyParallelEmbedding,
    VocabularyParallelHead,
)
from course_lib.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from course_lib.tensor_parallel.on_ranks import OnRanks
from course_lib.tensor_parallel.randomness import private
from course_lib.tensor_parallel.sequence import (
    S,
    Tokens,
    gathered_products,
    scattered_product,
    shared_once,
)


class GatheringColumns(ColumnParallelLinear):
    """A column-parallel layer that takes this rank's tokens and gives its columns of all tokens."""

    tokens: Tokens
    keep: bool

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        sizes = self.tokens.check(x, "a layer that gathers tokens")
        (y,) = gathered_products(x, [weight], [bias], self.group, sizes, keep=self.keep)
        return y  # (b, s, f/tp)


class ScatteringRows(RowParallelLinear):
    """A row-parallel layer that gives this rank's tokens of the sum."""

    tokens: Tokens

    def product(self, x: Tensor) -> Tensor:
        return scattered_product(x, self.weight, self.bias, self.group, self.tokens.sizes)


class SharedNorm(OnRanks):
    """The dense norm on this rank's tokens; its weights' gradients are summed, in one message."""

    def __init__(self, norm: nn.LayerNorm | RMSNorm, tokens: Tokens):
        super().__init__()
        self.weight = norm.weight
        self.register_parameter("bias", getattr(norm, "bias", None))
        self.group, self.training = tokens.group, norm.training
        self.norm = (norm,)  # in a tuple: its parameters are this module's, and are listed once

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = shared_once(self.weight, self.bias, group=self.group)
        used = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return functional_call(self.norm[0], used, (x,))


class PrivateDropout(nn.Module):
    """Dropout on this rank's own tokens: the mask is its part of the whole sequence's mask."""

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


class ScatteringEmbedding(VocabularyParallelEmbedding):
    """The lookup whose sum is scattered along the tokens; it says how long the sequence is."""

    tokens: Tokens

    def forward(self, ids: Tensor) -> Tensor:  # (b, s) -> (b, s/tp, h)
        self.tokens.length = ids.shape[S]
        return reduce_scatter(self.own_rows(ids), self.group, S, self.tokens.sizes)


class SplitPositions(nn.Module):
    """The positions of this rank's tokens; the gradient of the table is joined from all ranks."""

    def __init__(self, positions: nn.Embedding, tokens: Tokens):
        super().__init__()
        self.weight, self.tokens = positions.weight, tokens

    def forward(self, places: Tensor) -> Tensor:  # (s,) -> (s/tp, h), or (b, s) -> (b, s/tp, h)
        dim = places.dim() - 1
        return split(F.embedding(places, self.weight), self.tokens.group, dim, self.tokens.sizes)


class GatheringHead(VocabularyParallelHead):
    """This rank's logits of all tokens, from its own tokens' states."""

    tokens: Tokens
    keep: bool

    def forward(self, x: Tensor, loss: Loss | None = None) -> Tensor:
        # (b, s/tp, h) -> (b, s, v/tp)
        if loss is not None:
            return loss(x, self.weight)
        sizes = self.tokens.check(x, "the head")
        return gathered_products(x, [self.weight], [None], self.group, sizes, keep=self.keep)[0]


def scatter_model(model: GPT, tokens: Tokens, *, keep: bool) -> GPT:
    """Lay the plan over a model that is cut already, in place: the same weights, other messages.

    `keep` as in `gathered_products`.
    """
    for block in model.blocks:
        scatter_block(block, tokens, keep=keep)
    _become(model.tokens, ScatteringEmbedding, tokens=tokens)
    if model.positions is not None:
        model.positions = SplitPositions(model.positions, tokens)
    model.dropout = PrivateDropout(model.dropout, tokens)
    model.norm = SharedNorm(model.norm, tokens)
    _become(model.head, GatheringHead, tokens=tokens, keep=keep)
    return model


def scatter_block(block: Block, tokens: Tokens, *, keep: bool) -> Block:
    """The same for a block that is cut already: it takes and gives this rank's tokens."""
    swiglu = block.mlp.activation == "swiglu"
    for layer in (block.attention.qkv, block.mlp.gate_up if swiglu else block.mlp.up):
        _become(layer, GatheringColumns, tokens=tokens, keep=keep)
    for layer in (block.attention.out, block.mlp.down):
        _become(layer, ScatteringRows, tokens=tokens)
    block.norm_1, block.norm_2 = SharedNorm(block.norm_1, tokens), SharedNorm(block.norm_2, tokens)
    block.dropout = PrivateDropout(block.dropout, tokens)
    return block


def _become(layer: nn.Module, kind: type, **more: object) -> None:
    """A cut layer keeps its weights and gets other messages."""
    layer.__class__ = kind
    for key, value in more.items():
        setattr(layer, key, value)
