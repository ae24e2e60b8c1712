"""f, g and other conjugate pairs: each forward message with its backward message.

Transposing a program transposes its messages, so the verbs come in pairs, and each is the backward
of the other. All are out of place, so that tensors saved by autograd are never overwritten. Lesson
03 derives the pairs.

forward                  gives                   backward
    copy, copy_rows          x (nothing is sent)     reduce
    reduce                   the sum over the ranks  copy
    split                    own piece (not sent)    gather
    gather, then replicated  all pieces              split
    gather, then sharded     all pieces              reduce_scatter
    reduce_scatter           own piece of the sum    gather
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd import Function

from course_lib import collectives
from course_lib.collectives.call import Group, check_member, size_and_rank
from course_lib.layout import cut

REPLICATED, SHARDED = "replicated", "sharded"


class _Message(Function):
    """x -> `there(x)` and gradient -> `back(gradient)`; the backward pass swaps the functions."""

    @staticmethod
    def forward(ctx, x: Tensor, there: Callable, back: Callable) -> Tensor:
        ctx.there, ctx.back = there, back
        return there(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Message.apply(grad, ctx.back, ctx.there), None, None


def copy(x: Tensor, group: Group, *, sum_in: torch.dtype | None = None) -> Tensor:
    """f: x -> x on every rank. x is replicated; its gradient is summed over all ranks.

    `sum_in` is the dtype of that sum, by default the gradient's dtype.
    """
    check_member(group)
    return _Message.apply(x, _same, partial(_sum, group, sum_in))


def reduce(x: Tensor, group: Group, *, sum_in: torch.dtype | None = None) -> Tensor:
    """g: partial sums -> their sum on every rank. Each term's gradient is the gradient of the sum.

    The computation that follows must be the same on all ranks, so that the gradient that returns is
    the same too.
    """
    check_member(group)
    return _Message.apply(x, partial(_sum, group, sum_in), _same)


def split(x: Tensor, group: Group, dim: int = -1, sizes: Sequence[int] | None = None) -> Tensor:
    """Return this rank's piece of a replicated x; the gradient is gathered from all pieces.

    `sizes` are the lengths of the pieces along `dim`, by default those of torch.chunk.
    """
    n, _ = size_and_rank(group)
    sizes = cut(x.shape[dim], n) if sizes is None else list(sizes)
    if len(sizes) != n or sum(sizes) != x.shape[dim]:
        raise ValueError(
            f"split: dim {dim} is {x.shape[dim]} long, but sizes={sizes} do not split it over "
            f"{n} ranks. There must be {n} sizes that add up to it"
        )
    where = group, dim, sizes
    return _Message.apply(x, partial(_own_piece, *where), partial(_join, *where))


def gather(
    x: Tensor, group: Group, dim: int = -1, sizes: Sequence[int] | None = None, *, after: str
) -> Tensor:
    """Join all ranks' pieces along `dim`. `after` selects one of two backward passes.

    `sizes` are the lengths of the pieces, by default all equal. `split` uses the sizes of
    `cut(whole, n)`, which may be unequal.

    after="replicated": all ranks do the same with the result. Each then receives the full gradient
    and takes its own piece of it.
    after="sharded": each rank uses the result in a different way. The gradients that come back are
    partial sums, and each rank gets its own piece of their sum.
    """
    n, _ = size_and_rank(group)
    sizes = [x.shape[dim]] * n if sizes is None else list(sizes)
    back = {REPLICATED: _own_piece, SHARDED: _scatter}.get(after)
    if back is None:
        raise ValueError(
            f"gather(after={after!r}): pass after={REPLICATED!r} if all ranks do the same with "
            f"the result, or after={SHARDED!r} if each rank uses it in a different way"
        )
    where = group, dim, sizes
    return _Message.apply(x, partial(_join, *where), partial(back, *where))


def reduce_scatter(
    x: Tensor, group: Group, dim: int = -1, sizes: Sequence[int] | None = None
) -> Tensor:
    """Return this rank's piece of the sum of all ranks' x; gradients of all pieces are gathered."""
    n, _ = size_and_rank(group)
    sizes = cut(x.shape[dim], n) if sizes is None else list(sizes)
    where = group, dim, sizes
    return _Message.apply(x, partial(_scatter, *where), partial(_join, *where))


def copy_rows(
    x: Tensor, start: int, stop: int, group: Group, *, sum_in: torch.dtype | None = None
) -> Tensor:
    """Apply `copy` to rows `start` to `stop` of a weight that other ranks of `group` also hold."""
    check_member(group)
    return _Message.apply(x, _same, partial(_sum_rows, group, sum_in, start, stop))


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)


def _sum(group: Group, dtype: torch.dtype | None, x: Tensor) -> Tensor:
    if dtype is None or dtype == x.dtype:
        return collectives.all_reduce(x, group)
    return collectives.all_reduce(x.to(dtype), group, donated=True).to(x.dtype)


def _sum_rows(group: Group, dtype: torch.dtype | None, start: int, stop: int, x: Tensor) -> Tensor:
    return torch.cat((x[:start], _sum(group, dtype, x[start:stop]), x[stop:]))


def _own_piece(group: Group, dim: int, sizes: Sequence[int], x: Tensor) -> Tensor:
    # Not a view, because a view would keep the full tensor alive.
    return x.split(sizes, dim)[group.rank()].clone(memory_format=torch.contiguous_format)


def _join(group: Group, dim: int, sizes: Sequence[int], x: Tensor) -> Tensor:
    return collectives.all_gather(x, group, dim, sizes)


def _scatter(group: Group, dim: int, sizes: Sequence[int], x: Tensor) -> Tensor:
    return collectives.reduce_scatter(x, group, dim, sizes)
