"""AWQ's idea: scales protect columns with large inputs, and are found by trying a few values.

Q(W·s) applied to X/s is the same layer except for rounding. A column of W with large inputs is
enlarged, and therefore loses less. It uses s = (mean |x|)^α for α from 0 to 1, where α = 0 is plain
rounding. Appendix E2.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from course_lib.extras.quantization.four_bit import BLOCK, FourBit, quantize_4bit
from course_lib.extras.quantization.refusals import check_weight

TRIES = 20


@dataclass(frozen=True, eq=False)
class Scaled:
    """The codes of W·s, and s, which divides the layer's input."""

    weight: FourBit
    s: Tensor  # (inputs,), float32
    alpha: float
    errors: tuple[float, ...]  # for each α, as a share of the output's norm


def awq(
    weight: Tensor, inputs: Tensor, code: str = "int4", block: int = BLOCK, *, tries: int = TRIES
) -> Scaled:
    """(outputs, inputs) floats and calibration inputs (…, inputs) -> codes and the best s."""
    weight = check_weight(weight)
    x = check_weight(inputs.flatten(0, -2), "the calibration input").to(weight.dtype)
    if x.shape[1] != weight.shape[1]:
        raise ValueError(f"inputs of {x.shape[1]} columns do not fit a weight {weight.shape}")
    mean = x.abs().mean(0).clamp(min=1e-4)
    want = x @ weight.T
    found: list[tuple[float, float, Tensor, FourBit]] = []
    for i in range(tries + 1):
        s = mean ** (i / tries)
        s = (s / (s.max() * s.min()).sqrt()).float()  # around 1, because only ratios count
        kept = quantize_4bit(weight * s.to(weight.dtype), code, block)
        got = (x / s.to(x.dtype)) @ kept.dequantize(x.dtype).T
        found.append(((got - want).norm().item(), i / tries, s, kept))
    _, alpha, s, kept = min(found, key=lambda one: one[0])
    norm = want.norm().item()
    return Scaled(kept, s, alpha, tuple(error / norm for error, *_ in found))
