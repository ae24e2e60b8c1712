"""Codes and scales: half a step at most, exact bytes, and the published levels of nf4."""

from __future__ import annotations

import pytest
import torch

from course_lib.extras.quantization import (
    dequantize,
    int8_product,
    outlier_columns,
    quantize_4bit,
    quantize_int8,
)
from course_lib.extras.quantization.codebooks import CODES, levels, nearest
from course_lib.extras.quantization.four_bit import nest, pack, unpack
from course_lib.extras.quantization.sizes import four_bit_bytes, int8_bytes

# QLoRA, arXiv 2305.14314, appendix E.
PUBLISHED_NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_nf4s_levels_are_the_published_ones():
    assert CODES["nf4"]() == pytest.approx(PUBLISHED_NF4, abs=1e-6)


def test_fp4_is_a_sign_two_bits_of_exponent_and_one_of_mantissa():
    assert [6 * x for x in CODES["fp4"]()[8:]] == pytest.approx([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    assert CODES["fp4"]() == [-x for x in reversed(CODES["fp4"]())]


@pytest.mark.parametrize("code", CODES)
def test_the_nearest_level_is_the_nearest(code):
    table = levels(code)
    assert len(table) == 16 and torch.equal(table, table.sort().values)
    x = normal(500, dtype=torch.float64)
    distances = (x[:, None] - table).abs()
    chosen = distances.gather(1, nearest(x, code).long()[:, None])[:, 0]
    assert torch.equal(chosen, distances.min(1).values)
    assert 0.0 in table.tolist()  # a weight of 0 stays one


@pytest.mark.parametrize("block", [None, 64, 6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_int8_is_off_by_half_a_step_at_most(block, dtype):
    weight = normal(7, 192, seed=1).to(dtype)
    q = quantize_int8(weight, block)
    step = q.scales.double().repeat_interleave(block or 192, 1)
    wide = weight.double()
    off = (q.dequantize(torch.float64) - wide).abs()
    assert (off <= step * (0.5 + 1e-4)).all()
    assert q.codes.dtype == torch.int8 and q.codes.abs().max() == 127
    assert q.nbytes == int8_bytes(7, 192, block) == q.codes.numel() + 4 * q.scales.numel()
    most = wide.unflatten(1, (-1, block or 192)).abs().amax(2)
    assert torch.allclose(q.scales.double() * 127, most, rtol=1e-6)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("block", [64, 16])
def test_four_bits_are_the_nearest_levels_in_half_a_byte(code, block):
    weight = normal(5, 192, seed=2, dtype=torch.float64)
    q = quantize_4bit(weight, code, block)
    scales = weight.unflatten(1, (-1, block)).abs().amax(2).float().double()
    within = weight.unflatten(1, (-1, block)) / scales[..., None]
    want = levels(code)[nearest(within, code).long()] * scales[..., None]
    assert torch.equal(dequantize(q, torch.float64), want.flatten(1))
    assert q.shape == (5, 192) and q.packed.shape == (5, 96)
    assert q.nbytes == four_bit_bytes(5, 192, block)


def test_zeros_stay_zeros():
    weight = normal(4, 128)
    weight[1:3, :64] = 0
    for q in (quantize_int8(weight), quantize_int8(weight, 64), quantize_4bit(weight)):
        assert (dequantize(q)[1:3, :64] == 0).all() and dequantize(q).isfinite().all()
    assert (dequantize(quantize_4bit(weight, nested=True))[1:3, :64] == 0).all()


def test_two_codes_share_a_byte_the_first_one_high():
    assert pack(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)).tolist() == [[0x12, 0xF0]]
    codes = torch.randint(16, (3, 10), dtype=torch.uint8)
    assert torch.equal(unpack(pack(codes)), codes)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000])
def test_nested_scales_take_a_byte_and_are_off_by_half_a_step(count):
    scales = normal(1, count, seed=3).abs() + 1
    kept = nest(scales)
    assert kept.nbytes == count + 4 * -(-count // 256) + 4
    for first in range(0, count, 256):
        part = scales[:, first : first + 256] - scales.mean()
        off = (kept.expand()[:, first : first + 256] - scales[:, first : first + 256]).abs()
        assert (off <= part.abs().max() / 127 * 0.501 + 1e-6).all()


def test_nested_scales_are_never_negative():
    scales = torch.tensor([[0.0, 0.0, 10.0, 0.0, 0.0]])  # −2 rounds to −32 steps of 8/127
    assert (nest(scales).expand() >= 0).all()


@pytest.mark.parametrize("nested", [False, True])
def test_the_bits_of_a_weight_are_those_of_the_paper(nested):
    q = quantize_4bit(normal(512, 512), nested=nested)
    assert q.nbytes == four_bit_bytes(512, 512, nested=nested)
    # the mean is one number for the whole weight
    exact = 4 + 8 / 64 + 32 / (64 * 256) + 32 / 512**2 if nested else 4.5
    assert 8 * q.nbytes / 512**2 == exact


def test_the_product_of_codes_is_that_of_what_they_stand_for():
    x, weight = normal(9, 64, seed=4, dtype=torch.float64), normal(5, 64, seed=5)
    q = quantize_int8(weight)
    rounded = quantize_int8(x).dequantize(torch.float64)
    want = rounded @ q.dequantize(torch.float64).T
    assert torch.allclose(int8_product(x, q, None), want, rtol=0, atol=1e-10)
    assert int8_product(x.view(3, 3, 64), q, None).shape == (3, 3, 5)


def off(y, want):
    return ((y - want).norm() / want.norm()).item()


def test_outliers_ruin_the_int8_product_and_not_the_one_that_takes_them_apart():
    x, weight = normal(40, 128, seed=6).clamp(-5, 5), normal(30, 128, seed=7)
    loud = x.clone()
    loud[:, [5, 77]] *= 50
    loud[0, 100], loud[1, 101] = 6.0, -6.0  # at the threshold counts, of either sign
    assert outlier_columns(x).tolist() == []
    assert outlier_columns(loud).tolist() == [5, 77, 100, 101]
    q = quantize_int8(weight)
    # what the quiet columns say, in the product of all
    said = [int8_product(loud, q, t) - loud @ q.dequantize().T for t in (None, 6.0)]
    quiet = x[:, [c for c in range(128) if c not in (5, 77)]]
    scale = (quiet @ weight[:, [c for c in range(128) if c not in (5, 77)]].T).norm()
    assert said[0].norm() > 0.1 * scale and said[1].norm() < 0.02 * scale
    assert torch.equal(int8_product(x, q, 6.0), int8_product(x, q, None))
    everything = int8_product(loud, q, 0.0)  # all columns apart: no rounding of x
    assert off(everything, loud @ q.dequantize().T) < 1e-6
