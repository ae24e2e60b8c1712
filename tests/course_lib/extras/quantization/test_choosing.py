"""GPTQ and AWQ: nearer to the layer's output than rounding to nearest, in the same bytes."""

from __future__ import annotations

import pytest
import torch

from course_lib.extras.quantization import awq, dequantize, gptq, hessian, quantize_4bit
from course_lib.extras.quantization.codebooks import CODES
from tests.course_lib.extras.quantization.test_rounding import normal, off


def layer(inputs=128, outputs=48):
    """A weight, and calibration and other inputs: correlated, some columns large."""
    size = torch.ones(inputs)
    size[::16] = 10.0
    mix = torch.eye(inputs) + 0.15 * normal(inputs, inputs, seed=8)
    x = normal(800, inputs, seed=9) @ mix * size
    return normal(outputs, inputs, seed=10), x[:500], x[500:]


@pytest.mark.parametrize("code", CODES)
def test_both_are_nearer_on_inputs_that_they_have_not_seen(code):
    weight, seen, other = layer()
    want = other @ weight.T
    nearest, corrected = quantize_4bit(weight, code), gptq(weight, hessian(seen), code)
    scaled = awq(weight, seen, code)
    plain = off(other @ dequantize(nearest).T, want)
    assert off(other @ dequantize(corrected).T, want) < 0.85 * plain
    assert off((other / scaled.s) @ dequantize(scaled.weight).T, want) < 0.9 * plain
    assert corrected.nbytes == scaled.weight.nbytes == nearest.nbytes
    assert off(dequantize(corrected), weight) > off(dequantize(nearest), weight)


def test_gptq_on_inputs_that_do_not_depend_on_each_other_is_rounding_to_nearest():
    weight = normal(6, 64, seed=11)
    plain = quantize_4bit(weight, "nf4")
    assert torch.equal(gptq(weight, 2 * torch.eye(64), "nf4").packed, plain.packed)
    # columns of unequal size alone change nothing either: there is nothing to make up with
    unequal = torch.diag(torch.linspace(1, 2, 64))
    assert torch.equal(gptq(weight, unequal, "nf4", damping=0.0).packed, plain.packed)


def test_awq_at_alpha_0_is_rounding_to_nearest_and_the_best_is_kept():
    weight, seen, _ = layer()
    found = awq(weight, seen, "int4", tries=10)
    plain = off(seen @ dequantize(quantize_4bit(weight, "int4")).T, seen @ weight.T)
    assert found.errors[0] == pytest.approx(plain, rel=1e-5)
    assert found.alpha == found.errors.index(min(found.errors)) / 10 > 0
    assert off((seen / found.s) @ dequantize(found.weight).T, seen @ weight.T) == pytest.approx(
        min(found.errors), rel=1e-4
    )


def test_a_dead_input_harms_neither():
    weight, seen, _ = layer()
    seen[:, 3] = 0
    assert dequantize(gptq(weight, hessian(seen))).isfinite().all()
    assert dequantize(awq(weight, seen).weight).isfinite().all()
