"""The two products of sharded layers, with their messages sent when they cost least.

For columns, dX is computed before dW and all-reduced during dW, and several products of one X share
one all-reduce. For rows, the all-reduce reuses the product's memory. A layer calls them through its
`way`: `AllTokens` here, `OwnTokens` in sequence.py. Lesson 04 measures both products.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from course_lib.collectives import all_reduce
from course_lib.collectives.call import Group, check_member
from course_lib.tensor_parallel.conjugates import reduce


class AllTokens:
    """The messages of sharded layers if every rank has all tokens: all-reduces."""

    def __init__(self, group: Group, *, overlap: bool = True, sum_in: torch.dtype | None = None):
        self.group, self.overlap, self.sum_in = group, overlap, sum_in

    def columns(
        self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
    ) -> list[Tensor]:
        return column_products(
            x, weights, biases, self.group, overlap=self.overlap, sum_in=self.sum_in
        )

    def rows(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return row_product(x, weight, bias, self.group, sum_in=self.sum_in)

    def embedded(self, part: Tensor) -> Tensor:
        """(b, s, h) partial sum of embeddings on this rank -> their sum."""
        return reduce(part, self.group)

    def all_tokens(self, x: Tensor) -> Tensor:
        return x


def column_products(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    group: Group,
    *,
    overlap: bool = True,
    sum_in: torch.dtype | None = None,
) -> list[Tensor]:
    """Multiply x by each weight (f/tp, h) of this rank; all products share one all-reduce of dX.

    With `overlap=False`, the weights' gradients are computed only after that all-reduce.
    """
    check_member(group)
    given = autocast(x.device, x, *weights, *biases)
    return list(_ColumnProducts.apply(group, overlap, sum_in, *given))


def row_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    group: Group,
    *,
    sum_in: torch.dtype | None = None,
) -> Tensor:
    """Multiply x (…, h/tp) by this rank's weight (f, h/tp), sum over the ranks, add one bias."""
    check_member(group)
    return _RowProduct.apply(group, sum_in, *autocast(x.device, x, weight, bias))


class _ColumnProducts(Function):
    @staticmethod
    def forward(ctx, group, overlap, sum_in, x, *weights_and_biases):
        half = len(weights_and_biases) // 2
        weights, biases = weights_and_biases[:half], weights_and_biases[half:]
        ctx.group, ctx.overlap, ctx.sum_in = group, overlap, sum_in
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, w, b) for w, b in zip(weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx, *dys):
        x, *weights = ctx.saved_tensors
        half = len(weights)
        needs_x, needs_weight = ctx.needs_input_grad[3], ctx.needs_input_grad[4 : 4 + half]
        needs_bias = ctx.needs_input_grad[4 + half :]
        flat = [rows_of(dy) for dy in dys]  # (b·s, f/tp) each
        dx = under_way = None
        if needs_x:
            part = flat[0] @ weights[0]  # (b·s, h), a partial sum
            for dy, weight in zip(flat[1:], weights[1:], strict=True):
                part.addmm_(dy, weight)
            part = part.view(x.shape)
            if ctx.overlap:
                under_way = _sum(part, ctx.group, ctx.sum_in, async_op=True)
            else:
                dx = _sum(part, ctx.group, ctx.sum_in)
        rows = rows_of(x)  # (b·s, h)
        dws = [dy.t() @ rows if needs_weight[i] else None for i, dy in enumerate(flat)]
        dbs = [dy.sum(0) if needs_bias[i] else None for i, dy in enumerate(flat)]
        if under_way is not None:
            dx = under_way.wait()
        dx = None if dx is None else dx.to(x.dtype)
        return None, None, None, dx, *dws, *dbs


class _RowProduct(Function):
    @staticmethod
    def forward(ctx, group, sum_in, x, weight, bias):
        ctx.group, ctx.sum_in = group, sum_in
        ctx.save_for_backward(x, weight)
        part = F.linear(x, weight)  # (…, f), a partial sum
        y = _sum(part, group, sum_in).to(part.dtype)
        return y if bias is None else y.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        _, _, needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        flat = rows_of(dy)  # (b·s, f), the same on every rank
        dx = (flat @ weight).view(x.shape) if needs_x else None
        dw = flat.t() @ rows_of(x) if needs_weight else None
        return None, None, dx, dw, flat.sum(0) if needs_bias else None


def rows_of(x: Tensor) -> Tensor:
    """(…, f) -> (rows, f), with explicit sizes, because a rank's part of f may be empty."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _sum(part: Tensor, group: Group, dtype: torch.dtype | None, async_op: bool = False):
    """Return the sum of all ranks' parts, or its handle; the parts may be overwritten."""
    part = part if dtype is None else part.to(dtype)
    return all_reduce(part, group, donated=True, async_op=async_op)


def autocast(device: torch.device, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the tensors as autocast would pass them to a product, if it is on."""
    if device.type == "meta":  # torch has no autocast there
        return tensors
    if not torch.is_autocast_enabled(device.type):
        return tensors
    dtype = torch.get_autocast_dtype(device.type)
    narrow = (torch.float32, torch.float16, torch.bfloat16)  # autocast leaves float64 as it is
    return tuple(t.to(dtype) if t is not None and t.dtype in narrow else t for t in tensors)
