"""Codes and scales back to floats, for every form that this package knows.

What rounding took does not come back: dequantize(quantize(W)) is W on the grid. Appendix E2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.quantization.absmax import Int8
from course_lib.quantization.four_bit import FourBit

Quantized = Int8 | FourBit


def check_quantized(weight: object) -> Quantized:
    """The weight itself; refuses one that has no codes and scales yet."""
    if isinstance(weight, (Int8, FourBit)):
        return weight
    if isinstance(weight, Tensor):
        raise TypeError(
            f"this weight of {weight.dtype}, {tuple(weight.shape)}, is not quantized: it has no "
            "scales. Call quantize_int8 or quantize_4bit first; a float weight needs no "
            "dequantizing"
        )
    raise TypeError(f"a quantized weight is an Int8 or a FourBit, not a {type(weight).__name__}")


def dequantize(weight: Quantized, dtype: torch.dtype = torch.float32) -> Tensor:
    """(outputs, inputs) floats of a quantized weight."""
    return check_quantized(weight).dequantize(dtype)
