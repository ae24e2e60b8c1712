"""f, g and the other conjugate pairs: each message of the forward pass with that of the backward.

Transposing a program transposes its messages, so the verbs come in pairs, and each is the backward
of the other. All are out of place: nothing that autograd keeps is written into. Lesson 03 derives
the pairs.

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
    """x to `there(x)`, and its gradient to `back(gradient)`: the same class, the two exchanged."""

    @staticmethod
    def forward(ctx, x: Tensor, there: Callable, back: Callable) -> Tensor:
        ctx.there, ctx.back = there, back
        return there(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Message.apply(grad, ctx.back, ctx.there), None, None


def copy(x: Tensor, group: Group, *, sum_in: torch.dtype | None = None) -> Tensor:
    """f: a replicated x goes to every rank's own work. Its gradient is the sum of all ranks' terms.

    `sum_in` is the dtype of that sum; None takes the gradient's own.
    """
    check_member(group)
    return _Message.apply(x, _same, partial(_sum, group, sum_in))


def reduce(x: Tensor, group: Group, *, sum_in: torch.dtype | None = None) -> Tensor:
    """g: partial sums to the sum, on every rank. Each term's gradient is that of the sum.

    The computation that follows has to be the same on all ranks, because then the gradient that
    comes back is the same as well.
    """
    check_member(group)
    return _Message.apply(x, partial(_sum, group, sum_in), _same)


def split(x: Tensor, group: Group, dim: int = -1, sizes: Sequence[int] | None = None) -> Tensor:
    """This rank's piece of an x that all ranks hold; the gradient is joined from all pieces.

    `sizes` are the pieces' lengths along `dim`; without it torch.chunk's.
    """
    n, _ = size_and_rank(group)
    sizes = cut(x.shape[dim], n) if sizes is None else list(sizes)
    if len(sizes) != n or sum(sizes) != x.shape[dim]:
        raise ValueError(
            f"split: dim {dim} is {x.shape[dim]} long, and sizes={sizes} do not cut that over "
            f"{n} ranks; they have to be {n} and to add up to it"
        )
    where = group, dim, sizes
    return _Message.apply(x, partial(_own_piece, *where), partial(_join, *where))


def gather(
    x: Tensor, group: Group, dim: int = -1, sizes: Sequence[int] | None = None, *, after: str
) -> Tensor:
    """All ranks' pieces, joined along `dim`. There are two right backwards; `after` chooses.

    `sizes` are the pieces' lengths; without it they are taken to be equal. (`cut(whole, n)` are
    those of `split`, which may differ.)

    after="replicated": every rank goes on to do the same with the whole. Each then comes back with
    the whole gradient, and takes its own piece of it.
    after="sharded": every rank goes on to do something of its own with the whole. What comes back
    on each is a part of a sum, and a rank gets its own piece of that sum.
    """
    n, _ = size_and_rank(group)
    sizes = [x.shape[dim]] * n if sizes is None else list(sizes)
    back = {REPLICATED: _own_piece, SHARDED: _scatter}.get(after)
    if back is None:
        raise ValueError(
            f"gather(after={after!r}): what happens to the whole afterwards? {REPLICATED!r} if all "
            f"ranks do the same with it, {SHARDED!r} if each does something of its own"
        )
    where = group, dim, sizes
    return _Message.apply(x, partial(_join, *where), partial(back, *where))


def reduce_scatter(
    x: Tensor, group: Group, dim: int = -1, sizes: Sequence[int] | None = None
) -> Tensor:
    """This rank's piece of the sum of all ranks' x; the gradient is joined from all pieces."""
    n, _ = size_and_rank(group)
    sizes = cut(x.shape[dim], n) if sizes is None else list(sizes)
    where = group, dim, sizes
    return _Message.apply(x, partial(_scatter, *where), partial(_join, *where))


def copy_rows(
    x: Tensor, start: int, stop: int, group: Group, *, sum_in: torch.dtype | None = None
) -> Tensor:
    """`copy` for rows `start` to `stop` of a weight, which other ranks of `group` hold as well."""
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
    # A piece of its own, not a view: a view would keep the whole alive as long as it lives.
    return x.split(sizes, dim)[group.rank()].clone(memory_format=torch.contiguous_format)


def _join(group: Group, dim: int, sizes: Sequence[int], x: Tensor) -> Tensor:
    return collectives.all_gather(x, group, dim, sizes)


def _scatter(group: Group, dim: int, sizes: Sequence[int], x: Tensor) -> Tensor:
    return collectives.reduce_scatter(x, group, dim, sizes)
