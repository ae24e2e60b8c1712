"""Quantized layers over a tensor-parallel group: codes are sharded together with their scales.

If W[h, f] is sharded by columns (outputs), each scale stays with its output. If it is sharded by
rows (inputs), block scales stay with their blocks, and single scales are replicated. Appendix E2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from course_lib.collectives import all_reduce
from course_lib.collectives.call import Group, size_and_rank
from course_lib.extras.quantization.absmax import Int8, quantize_int8
from course_lib.extras.quantization.linear import Quantized, check_quantized
from course_lib.extras.quantization.refusals import check_weight, spans_of_blocks
from course_lib.layout import span
from course_lib.tensor_parallel.products import column_products, row_product


def inputs_of_rank(weight: Quantized, group: Group) -> Quantized:
    """Return this rank's part of a quantized weight, sharded along the inputs in full blocks."""
    n, rank = size_and_rank(group)
    return check_quantized(weight).cut_inputs(*spans_of_inputs(weight, n)[rank])


def spans_of_inputs(weight: Quantized, n: int) -> list[tuple[int, int]]:
    """Return the range (start, stop) of inputs for each of n ranks."""
    return spans_of_blocks(weight.shape[1], weight.block or 1, n)


def quantize_int8_rows(part: Tensor, group: Group) -> Int8:
    """Quantize this rank's part of a float weight along the inputs, with the scales of the full
    rows. A max all-reduce of (outputs, 1) ensures the same codes as on one rank."""
    outputs = part.shape[0]
    if part.shape[1]:
        own = check_weight(part).abs().amax(1, keepdim=True)
    else:  # no inputs here, but the all-reduce needs a max
        own = part.new_zeros(outputs, 1)
    most = all_reduce(own, group, op="max")
    if not part.shape[1]:
        return Int8(part.to(torch.int8), (most / 127).float(), None)
    return quantize_int8(part, most=most)


class ColumnParallelQuantized(nn.Module):
    """Y[b, f@tp] = X[b, h] W[h, f@tp] + bias[f@tp], with W from this rank's codes.

    `spans` are the output ranges of the ranks if the blocks of the next layer require a split
    different from torch.chunk's.
    """

    def __init__(
        self,
        weight: Quantized,
        group: Group,
        bias: Tensor | None = None,
        *,
        spans: Sequence[tuple[int, int]] | None = None,
    ):
        super().__init__()
        n, rank = size_and_rank(group)
        outputs = check_quantized(weight).shape[0]
        start, stop = span(outputs, n, rank) if spans is None else spans[rank]
        self.weight, self.group = weight.cut_outputs(start, stop), group
        self.bias = None if bias is None else bias.detach()[start:stop]

    def forward(self, x: Tensor) -> Tensor:  # (…, h) -> (…, f/tp)
        whole = self.weight.dequantize(x.dtype)
        return column_products(x, [whole], [self.bias], self.group)[0]


class RowParallelQuantized(nn.Module):
    """Y[b, f] = X[b, h@tp] W[h@tp, f] summed over the ranks, + bias[f], W from codes."""

    def __init__(self, weight: Quantized, group: Group, bias: Tensor | None = None):
        super().__init__()
        self.weight, self.group, self.bias = inputs_of_rank(weight, group), group, bias

    def forward(self, x: Tensor) -> Tensor:  # (…, h/tp) -> (…, f)
        if x.shape[-1] != self.weight.shape[1]:
            raise ValueError(
                f"rank {self.group.rank()} has the codes of {self.weight.shape[1]} inputs, but got "
                f"{x.shape[-1]} inputs: split the input at the same blocks "
                "(parallel.spans_of_inputs)"
            )
        return row_product(x, self.weight.dequantize(x.dtype), self.bias, self.group)
