"""f, g and their kin: each message of the forward with the message that its backward sends.

Transposing a program transposes its messages, so the verbs come in pairs, and each is written as
the backward of the other. All are out of place: nothing that autograd keeps is written into.
Lesson 03 derives them.

    forward                      backward
    copy            nothing      reduce          sum over the ranks
    reduce          sum          copy            nothing
    split           own piece    gather          all pieces
    gather, then replicated      split           own piece
    gather, then sharded         reduce_scatter  own piece of the sum
    reduce_scatter               gather          all pieces
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Function

from course_lib import collectives
from course_lib.collectives.call import Group, check_member, size_and_rank
from course_lib.layout import cut

REPLICATED, SHARDED = "replicated", "sharded"


def copy(x: Tensor, group: Group, *, sum_in: torch.dtype | None = None) -> Tensor:
    """f: a replicated x goes to every rank's own work. Its gradient is the sum of all ranks' terms.

    `sum_in` is the dtype of that sum; None takes the gradient's own.
    """
    check_member(group)
    return _Copy.apply(x, group, sum_in)


def reduce(x: Tensor, group: Group, *, sum_in: torch.dtype | None = None) -> Tensor:
    """g: partial sums to the sum, on every rank. Each term's gradient is that of the sum.

    What follows has to be the same on all ranks: then so is the gradient that comes back.
    """
    check_member(group)
    return _Reduce.apply(x, group, sum_in)


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
    return _Piece.apply(x, group, dim, sizes, REPLICATED)


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
    check_member(group)
    if after not in (REPLICATED, SHARDED):
        raise ValueError(
            f"gather(after={after!r}): what happens to the whole afterwards? {REPLICATED!r} if all "
            f"ranks do the same with it, {SHARDED!r} if each does something of its own"
        )
    return _Gather.apply(x, group, dim, sizes, after)


def reduce_scatter(
    x: Tensor, group: Group, dim: int = -1, sizes: Sequence[int] | None = None
) -> Tensor:
    """This rank's piece of the sum of all ranks' x; the gradient is joined from all pieces."""
    n, _ = size_and_rank(group)
    sizes = cut(x.shape[dim], n) if sizes is None else list(sizes)
    return _Piece.apply(x, group, dim, sizes, SHARDED)


def copy_rows(
    x: Tensor, start: int, stop: int, group: Group, *, sum_in: torch.dtype | None = None
) -> Tensor:
    """f for some rows of a weight alone: those that other ranks of `group` hold as well."""
    check_member(group)
    return _CopyRows.apply(x, start, stop, group, sum_in)


def _sum(x: Tensor, group: Group, dtype: torch.dtype | None) -> Tensor:
    if dtype is None or dtype == x.dtype:
        return collectives.all_reduce(x, group)
    return collectives.all_reduce(x.to(dtype), group, donated=True).to(x.dtype)


class _Copy(Function):
    @staticmethod
    def forward(ctx, x, group, sum_in):
        ctx.group, ctx.sum_in = group, sum_in
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return reduce(grad, ctx.group, sum_in=ctx.sum_in), None, None


class _Reduce(Function):
    @staticmethod
    def forward(ctx, x, group, sum_in):
        ctx.group, ctx.sum_in = group, sum_in
        return _sum(x, group, sum_in)

    @staticmethod
    def backward(ctx, grad):
        return copy(grad, ctx.group, sum_in=ctx.sum_in), None, None


class _Piece(Function):
    """This rank's piece: of an x that all hold (replicated), or of the sum of all x (sharded)."""

    @staticmethod
    def forward(ctx, x, group, dim, sizes, after):
        ctx.group, ctx.dim, ctx.sizes, ctx.after = group, dim, sizes, after
        if after == SHARDED:
            return collectives.reduce_scatter(x, group, dim, sizes)
        # A piece of its own, not a view: a view would keep the whole alive as long as it lives.
        return x.split(sizes, dim)[group.rank()].clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx, grad):
        whole = gather(grad, ctx.group, ctx.dim, ctx.sizes, after=ctx.after)
        return whole, None, None, None, None


class _Gather(Function):
    @staticmethod
    def forward(ctx, x, group, dim, sizes, after):
        ctx.sizes = [x.shape[dim]] * group.size() if sizes is None else list(sizes)
        ctx.group, ctx.dim, ctx.after = group, dim, after
        return collectives.all_gather(x, group, dim, sizes)

    @staticmethod
    def backward(ctx, grad):
        back = split if ctx.after == REPLICATED else reduce_scatter
        return back(grad, ctx.group, ctx.dim, ctx.sizes), None, None, None, None


class _CopyRows(Function):
    @staticmethod
    def forward(ctx, x, start, stop, group, sum_in):
        ctx.start, ctx.stop, ctx.group, ctx.sum_in = start, stop, group, sum_in
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        shared = reduce(grad[ctx.start : ctx.stop], ctx.group, sum_in=ctx.sum_in)
        grad = torch.cat((grad[: ctx.start], shared, grad[ctx.stop :]))
        return grad, None, None, None, None
