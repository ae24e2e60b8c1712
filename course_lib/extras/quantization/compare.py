"""Comparison of a model with rounded layers with the original: bytes, bits and output errors.

Appendix E2.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.extras.quantization.awq import awq
from course_lib.extras.quantization.linear import (
    Quantized,
    QuantizedLinear,
    linears,
    quantize_model,
)

Make = Callable[[str, nn.Linear], QuantizedLinear]  # (layer's name, layer) -> quantized layer


class Rounded(NamedTuple):
    """A copy of a model with quantized layers, and measurements of these layers."""

    model: nn.Module
    nbytes: int  # of codes and scales
    bits: float  # for each weight of the layers
    error: float  # mean error of the layers' outputs, relative to their norm


@torch.no_grad()
def rounded(model: nn.Module, make: Make, inputs: Mapping[str, Tensor]) -> Rounded:
    """Quantize the linear layers of a copy of `model`, and measure their errors on `inputs`."""
    dense, kept = linears(model), copy.deepcopy(model)
    nbytes = quantize_model(kept, make)
    weights = sum(layer.weight.numel() for layer in dense.values())
    errors = []
    for name, layer in dense.items():
        want, got = layer(inputs[name]), kept.get_submodule(name)(inputs[name])
        errors.append(((got - want).norm() / want.norm()).item())
    return Rounded(kept, nbytes, 8 * nbytes / weights, sum(errors) / len(errors))


def codes_by(quantize: Callable[[str, Tensor], Quantized], **options: float) -> Make:
    """Return a function that makes a layer from quantize(name, weight) and these options."""
    return lambda name, layer: QuantizedLinear(quantize(name, layer.weight), layer.bias, **options)


def awq_by(inputs: Mapping[str, Tensor], code: str) -> Make:
    """Return a function that makes a layer from AWQ's codes and the s that divides its input."""

    def make(name: str, layer: nn.Linear) -> QuantizedLinear:
        found = awq(layer.weight, inputs[name], code)
        return QuantizedLinear(found.weight, layer.bias, s=found.s)

    return make
