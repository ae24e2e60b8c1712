"""What cannot be quantized, dequantized or cut is refused, with the cause and a remedy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from course_lib.extras.quantization import (
    QuantizedLinear,
    awq,
    dequantize,
    gptq,
    hessian,
    int8_product,
    quantize_4bit,
    quantize_int8,
    quantize_model,
)
from course_lib.extras.quantization.adapters import adapt
from course_lib.extras.quantization.refusals import spans_of_blocks
from tests.course_lib.extras.quantization.test_rounding import normal

W = normal(6, 128)
NAN = torch.full((2, 64), float("nan"))
EIGHT, FOUR = quantize_int8(W), quantize_4bit(W)
CASES = {
    "not quantized yet": (lambda: dequantize(W), "is not quantized: it has no scales. Call"),
    "no weight": (lambda: dequantize([1]), "an Int8 or a FourBit, not a list"),
    "quantized twice": (lambda: quantize_4bit(EIGHT.codes), "may hold codes already"),
    "a vector": (lambda: quantize_int8(W[0]), r"\[outputs, inputs\]: reshape"),
    "empty": (lambda: quantize_4bit(W[:0]), "is empty .*gather it first"),
    "NaN": (lambda: quantize_int8(NAN), "128 of 128 values that are NaN or infinite"),
    "NaN inputs": (lambda: hessian(NAN), "the calibration input has 128"),
    "block": (lambda: quantize_4bit(W, block=96), "128 inputs is not filled by blocks of 96: 32 "),
    "block of int8": (lambda: quantize_int8(W, 48), "Take block=128"),
    "odd block": (lambda: quantize_4bit(W, block=3), "must be an even number"),
    "odd inputs": (lambda: quantize_4bit(W[:, :7]), "Pad the inputs to an even number"),
    "code": (lambda: quantize_4bit(W, "nf3"), "is not among int4, fp4, nf4"),
    "off the border": (lambda: FOUR.cut_inputs(0, 96), "at 96 is inside a block of 64 .64 to 128"),
    "int8 off the border": (
        lambda: quantize_int8(W, 64).cut_inputs(32, 64),
        "Split between blocks",
    ),
    "no whole blocks": (lambda: spans_of_blocks(100, 64, 2), "do not divide into blocks of 64"),
    "nested, by outputs": (lambda: FOUR.nest().cut_outputs(0, 3), "Split the weight first"),
    "nested, by inputs": (lambda: FOUR.nest().cut_inputs(0, 64), "call nest.. on each part"),
    "product of blocks": (lambda: int8_product(W, quantize_int8(W, 64)), "without block"),
    "product of another width": (lambda: int8_product(W[:, :5], EIGHT), "5 columns"),
    "threshold of floats": (lambda: QuantizedLinear(FOUR, threshold=6.0), "call quantize_int8"),
    "most and block": (
        lambda: quantize_int8(W, 64, most=W[:, :1]),
        "pass either `most` or `block`",
    ),
    "Hessian": (lambda: gptq(W, torch.eye(5)), "Hessian of 128 inputs is square"),
    "too few tokens": (
        lambda: gptq(W, hessian(normal(3, 128)) - 1e-6 * torch.eye(128), damping=0.0),
        "not positive definite, because there are too few",
    ),
    "AWQ": (lambda: awq(W, normal(5, 64)), "64 columns do not fit"),
    "a model of none": (lambda: quantize_model(nn.GELU(), None), "no linear layer to quantize"),
    "adapters of none": (lambda: adapt(nn.Linear(4, 4), 2), "call quantize_model first"),
    "adapters of rank 0": (
        lambda: adapt(nn.Sequential(QuantizedLinear(FOUR)), 0),
        "r=0 must be from 1 to 6",
    ),
    "adapters of rounded inputs": (
        lambda: adapt(nn.Sequential(QuantizedLinear(EIGHT, threshold=6.0)), 2),
        "has no backward",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_cause_and_remedy(name):
    call, words = CASES[name]
    with pytest.raises((ValueError, TypeError), match=words):
        call()
