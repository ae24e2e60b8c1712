"""LLM.int8(): a product of int8 codes, except for the columns of X that hold outliers.

A row of X has one scale, so one large value rounds the rest of the row to 0. Columns with a
magnitude of at least the threshold are multiplied in floats, all others in int8. Appendix E2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.extras.quantization.absmax import Int8, quantize_int8

THRESHOLD = 6.0


def outlier_columns(x: Tensor, threshold: float = THRESHOLD) -> Tensor:
    """Return the indices of the columns of x (…, inputs) whose magnitude reaches the threshold."""
    return (x.detach().flatten(0, -2).abs() >= threshold).any(0).nonzero().flatten()


def int8_product(x: Tensor, weight: Int8, threshold: float | None = THRESHOLD) -> Tensor:
    """x (…, inputs), weight (outputs, inputs) -> (…, outputs), in int8 only if threshold=None."""
    if weight.block is not None:
        raise ValueError(
            f"the product of int8 codes needs one scale for each row of the weight, but this one "
            f"has blocks of {weight.block}: call quantize_int8(weight) without block"
        )
    if x.shape[-1] != weight.shape[1]:
        raise ValueError(f"x has {x.shape[-1]} columns, but the weight {weight.shape[1]} inputs")
    flat = x.detach().flatten(0, -2)
    apart = torch.zeros(flat.shape[1], dtype=torch.bool, device=x.device)
    if threshold is not None:
        apart[outlier_columns(flat, threshold)] = True
    y = flat.new_zeros(flat.shape[0], weight.shape[0])
    if not apart.all():
        codes = quantize_int8(flat[:, ~apart])
        # int32 on tensor cores; float64 holds the same integers exactly, and every device has it
        sums = codes.codes.double() @ weight.codes[:, ~apart].double().T  # (tokens, outputs)
        y += sums.to(x.dtype) * codes.scales.to(x.dtype) * weight.scales.to(x.dtype).T
    if apart.any():
        y += flat[:, apart] @ weight.dequantize(x.dtype)[:, apart].T
    return y.unflatten(0, x.shape[:-1])
