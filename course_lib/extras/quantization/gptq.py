"""GPTQ: columns are rounded one by one, and later columns compensate for the error of each.

It minimizes the error of the layer's output, ‖X(W − Q)ᵀ‖², whose second derivative is H = 2XᵀX for
every row. With H⁻¹ = UᵀU, where U is upper triangular, the best correction after column j is row j
of U. Appendix E2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.extras.quantization.codebooks import levels, nearest
from course_lib.extras.quantization.four_bit import BLOCK, FourBit, pack
from course_lib.extras.quantization.refusals import check_block, check_weight

DAMPING = 0.01


def hessian(inputs: Tensor) -> Tensor:
    """(…, inputs) inputs of a layer -> 2XᵀX/tokens, in float64."""
    x = check_weight(inputs.flatten(0, -2), "the calibration input").double()
    return 2 * x.T @ x / x.shape[0]


def inverse_root(h: Tensor, damping: float = DAMPING) -> Tensor:
    """Return upper triangular U with UᵀU = (H + damping · mean diagonal · I)⁻¹."""
    h = h + damping * h.diagonal().mean() * torch.eye(len(h), dtype=h.dtype, device=h.device)
    lower, failed = torch.linalg.cholesky_ex(h)
    if int(failed):
        raise ValueError(
            f"the Hessian of {len(h)} inputs is not positive definite, because there are too few "
            f"calibration tokens or damping={damping} is too small. Take more, or damping=0.01"
        )
    return torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)


def gptq(
    weight: Tensor, h: Tensor, code: str = "int4", block: int = BLOCK, *, damping: float = DAMPING
) -> FourBit:
    """(outputs, inputs) floats and the inputs' Hessian -> codes in the form of quantize_4bit."""
    left = check_weight(weight).double().clone()
    outputs, inputs = left.shape
    check_block(inputs, block)
    if h.shape != (inputs, inputs):
        raise ValueError(f"a Hessian of {inputs} inputs is square, but this is {tuple(h.shape)}")
    root = inverse_root(h.double(), damping)
    table = levels(code).to(left.device)
    codes = torch.empty(outputs, inputs, dtype=torch.uint8, device=left.device)
    scales = torch.empty(outputs, inputs // block, device=left.device)
    for j in range(inputs):
        if j % block == 0:  # the scale of this block after the corrections
            scales[:, j // block] = left[:, j : j + block].abs().amax(1).float()
        scale = scales[:, j // block].double().clamp(min=torch.finfo(torch.float32).tiny)
        codes[:, j] = nearest(left[:, j] / scale, code)
        lost = (left[:, j] - table[codes[:, j].long()] * scale) / root[j, j]
        left[:, j + 1 :] -= lost[:, None] * root[j, j + 1 :]
    return FourBit(pack(codes), scales, code, block)
