"""Layers of codes in a model: what they compute, hold and let through, and adapters beside them."""

from __future__ import annotations

import copy

import torch

from course_lib.extras.quantization import (
    QuantizedLinear,
    awq,
    dequantize,
    inputs_of,
    int8_product,
    linears,
    quantize_4bit,
    quantize_int8,
    quantize_model,
)
from course_lib.extras.quantization.adapters import Adapted, adapt
from course_lib.extras.quantization.sizes import four_bit_bytes
from course_lib.gpt import GPT, Config
from tests.course_lib.extras.quantization.test_rounding import normal

CONFIG = Config.gpt2(vocabulary=31, length=8, hidden=64, layers=2, heads=4)


def model():
    torch.manual_seed(0)
    return GPT(CONFIG)


def nf4(name, layer):
    return QuantizedLinear(quantize_4bit(layer.weight), layer.bias)


IDS = torch.randint(31, (3, 8), generator=torch.Generator().manual_seed(1))


def test_a_quantized_model_is_the_model_with_its_weights_rounded():
    dense, kept = model(), model()
    shapes = {name: layer.weight.shape for name, layer in linears(dense).items()}
    assert len(shapes) == 8 and "head" not in shapes
    nbytes = quantize_model(kept, nf4)
    assert nbytes == sum(four_bit_bytes(*shape) for shape in shapes.values())
    for layer in linears(dense).values():
        layer.weight.data = dequantize(quantize_4bit(layer.weight))
    assert torch.equal(kept(IDS), dense(IDS))
    assert "64 inputs, 192 outputs, FourBit" in repr(kept)


def test_s_divides_the_input_and_a_threshold_takes_the_product_of_codes():
    layer, x = torch.nn.Linear(64, 6), normal(10, 64)
    scaled = awq(layer.weight, x)
    got = QuantizedLinear(scaled.weight, layer.bias, s=scaled.s)
    want = (x / scaled.s) @ dequantize(scaled.weight).T + layer.bias
    assert torch.allclose(got(x), want, atol=1e-6) and got.nbytes == scaled.weight.nbytes + 4 * 64
    q = quantize_int8(layer.weight)
    assert torch.equal(
        QuantizedLinear(q, layer.bias, threshold=6.0)(x), int8_product(x, q) + layer.bias
    )


def test_scales_keep_their_dtype_when_the_model_changes_its_own():
    kept = model()
    quantize_model(kept, nf4)
    kept.to(torch.bfloat16)
    layer = kept.blocks[0].mlp.up
    assert layer.weight.scales.dtype == torch.float32 and layer.bias.dtype == torch.bfloat16
    assert kept(IDS).dtype == torch.bfloat16
    assert copy.deepcopy(kept).blocks[0].mlp.up.weight.nbytes == layer.weight.nbytes


def test_calibration_hears_what_each_layer_read_and_leaves_no_hook():
    dense = model()
    heard = inputs_of(dense, IDS)
    assert {name: tuple(x.shape) for name, x in heard.items()} == {
        name: (24, layer.in_features) for name, layer in linears(dense).items()
    }
    block = dense.blocks[0]
    want = block.norm_1(dense.embed(IDS)).flatten(0, 1)
    assert torch.equal(heard["blocks.0.attention.qkv"], want.detach())
    assert not any(layer._forward_pre_hooks for layer in linears(dense).values())


def test_adapters_change_nothing_at_first_and_learn_alone():
    kept = model()
    quantize_model(kept, nf4)
    before = kept(IDS)
    trained = adapt(kept, r=3)
    assert torch.equal(kept(IDS), before)
    assert sum(p.numel() for p in trained) == sum(
        3 * (m.A.shape[1] + m.B.shape[0]) for m in kept.modules() if isinstance(m, Adapted)
    )
    packed = kept.blocks[0].mlp.up.codes.weight.packed.clone()
    sgd = torch.optim.SGD(trained, lr=0.5)
    for _ in range(2):  # the first step moves B alone, since B is 0
        kept(IDS).square().sum().backward()
        sgd.step()
    assert not torch.equal(kept(IDS), before)
    assert all(p.grad.abs().sum() > 0 for p in trained)  # through all codes to the first layer
    assert all(p.grad is None for p in kept.parameters() if not p.requires_grad)
    assert torch.equal(kept.blocks[0].mlp.up.codes.weight.packed, packed)
