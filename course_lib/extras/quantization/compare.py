"""A model with rounded layers beside the one that it was: bytes, bits, error of the outputs.

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

Make = Callable[[str, nn.Linear], QuantizedLinear]  # a layer's name and itself, to one of codes


class Rounded(NamedTuple):
    """A copy of a model with codes in its layers, and what became of these layers."""

    model: nn.Module
    nbytes: int  # of codes and scales
    bits: float  # for each weight of the layers
    error: float  # of the layers' outputs on given inputs, a share of their norm, the mean


@torch.no_grad()
def rounded(model: nn.Module, make: Make, inputs: Mapping[str, Tensor]) -> Rounded:
    """Replace the linear layers of a copy of `model`; `inputs` are what each layer reads."""
    dense, kept = linears(model), copy.deepcopy(model)
    nbytes = quantize_model(kept, make)
    weights = sum(layer.weight.numel() for layer in dense.values())
    errors = []
    for name, layer in dense.items():
        want, got = layer(inputs[name]), kept.get_submodule(name)(inputs[name])
        errors.append(((got - want).norm() / want.norm()).item())
    return Rounded(kept, nbytes, 8 * nbytes / weights, sum(errors) / len(errors))


def codes_by(quantize: Callable[[str, Tensor], Quantized], **options: float) -> Make:
    """A layer of the codes quantize(name, weight); options are QuantizedLinear's."""
    return lambda name, layer: QuantizedLinear(quantize(name, layer.weight), layer.bias, **options)


def awq_by(inputs: Mapping[str, Tensor], code: str) -> Make:
    """A layer of AWQ's codes, with the s that divides its input."""

    def make(name: str, layer: nn.Linear) -> QuantizedLinear:
        found = awq(layer.weight, inputs[name], code)
        return QuantizedLinear(found.weight, layer.bias, s=found.s)

    return make
