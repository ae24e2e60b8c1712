"""Attention with an exchange from all heads of some tokens to some heads of all tokens.

Between two all-to-alls each rank computes ordinary attention. An exchange only moves elements, so
its adjoint is the reverse exchange (DeepSpeed-Ulysses, Jacobs et al. 2023). Appendix E4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from course_lib.collectives import all_to_all
from course_lib.collectives.call import Group, size_and_rank


def head_exchange_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, sizes: Sequence[int]
) -> Tensor:
    """Compute causal attention of this rank's queries (b, heads, own, d) over all keys and values.

    k and v are (b, kv heads, own, d). `sizes[r]` is the number of consecutive tokens on rank r.
    """
    q, k, v = (to_heads(x, group, sizes) for x in (q, k, v))  # (b, heads/n, s, d) each
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] < q.shape[1])
    return to_tokens(y, group, sizes)


def to_heads(x: Tensor, group: Group, sizes: Sequence[int]) -> Tensor:
    """(b, heads, own, d) -> (b, heads/n, s, d)."""
    (n, _), heads = size_and_rank(group), x.shape[1]
    if heads % n:
        raise ValueError(
            f"{heads} heads do not divide over {n} ranks, but an exchange of heads gives each rank "
            "equally many. Take a number of ranks that divides the heads (of keys and values too), "
            "repeat key/value heads, or use ring_attention, which does not split heads"
        )
    return _ToHeads.apply(x, group, tuple(sizes))


def to_tokens(x: Tensor, group: Group, sizes: Sequence[int]) -> Tensor:
    """(b, heads/n, s, d) -> (b, heads, own, d), the reverse exchange."""
    return _ToTokens.apply(x, group, tuple(sizes))


def _heads(x: Tensor, group: Group, sizes: Sequence[int]) -> Tensor:
    n, _ = size_and_rank(group)
    pieces = x.chunk(n, dim=1)  # (b, heads/n, own, d) for each rank
    like = [pieces[0].new_empty((*pieces[0].shape[:2], size, x.shape[3])) for size in sizes]
    return torch.cat(all_to_all(pieces, group, like=like), dim=2)


def _tokens(x: Tensor, group: Group, sizes: Sequence[int]) -> Tensor:
    n, rank = size_and_rank(group)
    pieces = x.split(list(sizes), dim=2)  # (b, heads/n, theirs, d) for each rank
    return torch.cat(all_to_all(pieces, group, like=[pieces[rank]] * n), dim=1)


class _ToHeads(Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: Group, sizes: tuple[int, ...]) -> Tensor:
        ctx.group, ctx.sizes = group, sizes
        return _heads(x, group, sizes)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return to_tokens(gradient, ctx.group, ctx.sizes), None, None


class _ToTokens(Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: Group, sizes: tuple[int, ...]) -> Tensor:
        ctx.group, ctx.sizes = group, sizes
        return _tokens(x, group, sizes)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return to_heads(gradient, ctx.group, ctx.sizes), None, None
