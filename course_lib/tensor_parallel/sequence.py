"""Sequence parallelism: between sharded layers each rank keeps its own tokens, (b, s/tp, h).

The all-reduce after a row-parallel layer splits into a reduce-scatter and an all-gather. The
all-gather moves to the next column-parallel layer, so norms and dropout in between see 1/tp of the
tokens. The gathered X is kept for the backward pass or gathered again to save memory. Lesson 06.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from course_lib.collectives import all_gather, reduce_scatter
from course_lib.collectives.call import Group, check_member
from course_lib.layout import cut, span
from course_lib.tensor_parallel import conjugates
from course_lib.tensor_parallel.products import autocast, rows_of
from course_lib.tensor_parallel.rank_module import refuse_to_pickle

S = 1  # the dim of tokens in (b, s, h)


class Tokens:
    """The length of the current sequence, which a rank cannot infer from its own part.

    The model's embedding sets it, and every layer of the plan reads it.
    """

    def __init__(self, group: Group):
        check_member(group)
        self.group, self.length = group, 0

    @property
    def sizes(self) -> list[int]:
        return cut(self.length, self.group.size())

    def span(self) -> tuple[int, int]:
        return span(self.length, self.group.size(), self.group.rank())

    def check(self, x: Tensor, who: str) -> list[int]:
        """Return the lengths of all ranks' parts, or raise if x is not this rank's part."""
        sizes, rank = self.sizes, self.group.rank()
        if x.dim() < 2 or x.shape[S] != sizes[rank]:
            raise ValueError(
                f"rank {rank}: {who} takes this rank's {sizes[rank]} of {self.length} tokens along "
                f"dim {S}, but got a tensor of shape {tuple(x.shape)}. Did a new sequence begin "
                "before the backward of this one had recomputed it?"
            )
        return sizes

    def __reduce_ex__(self, protocol: int):
        refuse_to_pickle(self)

    def __deepcopy__(self, memo: dict) -> Tokens:
        made = memo[id(self)] = Tokens(self.group)
        made.length = self.length
        return made


class OwnTokens:
    """The messages of sharded layers if each rank has its own tokens: lesson 04's `AllTokens` with
    each all-reduce split in two. `keep` is as in `gathered_products`."""

    sum_in = None  # a sum uses the dtype of its terms

    def __init__(self, tokens: Tokens, *, keep: bool = True):
        self.tokens, self.group, self.keep = tokens, tokens.group, keep

    def columns(
        self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
    ) -> list[Tensor]:
        sizes = self.tokens.check(x, "a layer that gathers tokens")
        return gathered_products(x, weights, biases, self.group, sizes, keep=self.keep)

    def rows(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return scattered_product(x, weight, bias, self.group, self.tokens.sizes)

    def embedded(self, part: Tensor) -> Tensor:
        """(b, s, h) partial sums of embeddings -> the sum for this rank's own tokens."""
        self.tokens.length = part.shape[S]
        return conjugates.reduce_scatter(part, self.group, S, self.tokens.sizes)

    def all_tokens(self, x: Tensor) -> Tensor:
        """(b, s/tp, h) -> (b, s, h), for computation that is the same on every rank."""
        sizes = self.tokens.check(x, "the fused loss")
        return conjugates.gather(x, self.group, S, sizes, after=conjugates.REPLICATED)


def gathered_products(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    group: Group,
    sizes: Sequence[int],
    *,
    keep: bool = True,
) -> list[Tensor]:
    """Gather tokens x (b, s/tp, h) and multiply by each weight (f/tp, h) -> (b, s, f/tp) each.

    `keep` saves the gathered X for the backward pass. Without it, X is gathered again while dX is
    computed. The reduce-scatter of dX overlaps with the product for the weights' gradients.
    """
    check_member(group)
    given = autocast(x.device, x, *weights, *biases)
    return list(_GatheredProducts.apply(group, list(sizes), keep, *given))


def scattered_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, sizes: Sequence[int]
) -> Tensor:
    """Multiply x (b, s, h/tp) by this rank's weight (f, h/tp) and reduce-scatter -> (b, s/tp, f).
    The bias needs no message, because its gradient is a sum over the gathered dY.
    """
    check_member(group)
    given = autocast(x.device, x, weight, bias)
    return _ScatteredProduct.apply(group, list(sizes), *given)


class _GatheredProducts(Function):
    @staticmethod
    def forward(ctx, group, sizes, keep, x, *weights_and_biases):
        half = len(weights_and_biases) // 2
        weights, biases = weights_and_biases[:half], weights_and_biases[half:]
        whole = all_gather(x, group, S, sizes)  # (b, s, h)
        ctx.group, ctx.sizes, ctx.keep = group, sizes, keep
        ctx.save_for_backward(whole if keep else x, *weights)
        return tuple(F.linear(whole, w, b) for w, b in zip(weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx, *dys):
        kept, *weights = ctx.saved_tensors
        half = len(weights)
        needs_x, needs_weight = ctx.needs_input_grad[3], ctx.needs_input_grad[4 : 4 + half]
        needs_bias = ctx.needs_input_grad[4 + half :]
        again = None
        if not ctx.keep and any(needs_weight):
            again = all_gather(kept, ctx.group, S, ctx.sizes, async_op=True)
        flat = [rows_of(dy) for dy in dys]  # (b·s, f/tp) each
        scattering = None
        if needs_x:
            part = flat[0] @ weights[0]  # (b·s, h), a partial sum
            for dy, weight in zip(flat[1:], weights[1:], strict=True):
                part.addmm_(dy, weight)
            part = part.view(*dys[0].shape[:-1], part.shape[-1])  # (b, s, h)
            scattering = reduce_scatter(part, ctx.group, S, ctx.sizes, async_op=True)
        dws = [None] * half
        if any(needs_weight):
            rows = rows_of(kept if again is None else again.wait())  # (b·s, h)
            dws = [dy.t() @ rows if needs_weight[i] else None for i, dy in enumerate(flat)]
        dbs = [dy.sum(0) if needs_bias[i] else None for i, dy in enumerate(flat)]
        dx = scattering.wait() if needs_x else None  # (b, s/tp, h)
        return None, None, None, dx, *dws, *dbs


class _ScatteredProduct(Function):
    @staticmethod
    def forward(ctx, group, sizes, x, weight, bias):
        ctx.group, ctx.sizes = group, sizes
        ctx.save_for_backward(x, weight)
        y = reduce_scatter(F.linear(x, weight), group, S, sizes)  # (b, s/tp, f)
        return y if bias is None else y.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        _, _, needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        whole = all_gather(dy, ctx.group, S, ctx.sizes)  # (b, s, f)
        flat = rows_of(whole)
        dx = (flat @ weight).view(x.shape) if needs_x else None
        dw = flat.t() @ rows_of(x) if needs_weight else None
        return None, None, dx, dw, flat.sum(0) if needs_bias else None


def in_bytes(b: int, s: int, h: int, n: int, item: int, *, keep: bool) -> dict[str, float]:
    """Compute the bytes that a rank sends for a column and a row layer, in both passes.

    With X kept there are 4 moves of (n−1)/n of b·s·h, exactly the cost of two all-reduces. If X is
    gathered again there are 5. The formula is exact if n divides s.
    """
    move = (n - 1) * b * s * h * item / n
    return {
        "forward": 2 * move,
        "backward": (2 if keep else 3) * move,
        "all": (4 if keep else 5) * move,
    }


def shared_once(*parameters: torch.nn.Parameter | None, group: Group) -> list[Tensor | None]:
    """Return replicated parameters for use on a rank's own tokens. Their gradients are partial
    sums, which are all-reduced in one message."""
    given = [p for p in parameters if p is not None]
    if not given:
        return list(parameters)
    packed = conjugates.copy(torch.cat([p.reshape(-1) for p in given]), group)
    parts = iter(packed.split([p.numel() for p in given]))
    return [None if p is None else next(parts).view(p.shape) for p in parameters]
