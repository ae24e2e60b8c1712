"""QLoRA: a layer with frozen codes, and two thin matrices that are trained instead.

The gradient passes through the dequantized weight and is kept only for adapters. Appendix E2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from course_lib.extras.quantization.linear import QuantizedLinear


class Adapted(nn.Module):
    """y = codes(x) + x Aᵀ Bᵀ, with A[r, inputs] initially random and B[outputs, r] zero."""

    def __init__(self, codes: QuantizedLinear, r: int):
        super().__init__()
        outputs, inputs = codes.weight.shape
        if not 1 <= r <= min(outputs, inputs):
            raise ValueError(f"r={r} must be from 1 to {min(outputs, inputs)} for this layer")
        if codes.threshold is not None:
            raise ValueError(
                "the product of int8 codes has no backward, so layers before this one would not "
                "learn: leave threshold out under an adapter"
            )
        self.codes = codes
        self.A = nn.Parameter(torch.randn(r, inputs) / inputs**0.5)
        self.B = nn.Parameter(torch.zeros(outputs, r))

    def forward(self, x: Tensor) -> Tensor:
        return self.codes(x) + x @ self.A.T @ self.B.T


def adapt(model: nn.Module, r: int) -> nn.ParameterList:
    """Freeze a quantized model, add an adapter to each layer, return the new parameters."""
    names = [name for name, m in model.named_modules() if isinstance(m, QuantizedLinear)]
    if not names:
        raise ValueError("this model has no quantized layer: call quantize_model first")
    model.requires_grad_(False)
    for name in names:
        place, _, last = name.rpartition(".")
        setattr(model.get_submodule(place), last, Adapted(model.get_submodule(name), r))
    return nn.ParameterList(p for p in model.parameters() if p.requires_grad)
