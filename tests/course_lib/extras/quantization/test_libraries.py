"""Beside bitsandbytes on the CPU, alone and through transformers; appendix E2 runs the rest."""

from __future__ import annotations

import importlib.util
import logging

import pytest
import torch

from course_lib.extras.quantization import dequantize, int8_product, quantize_4bit, quantize_int8
from course_lib.extras.quantization.codebooks import CODES
from course_lib.extras.quantization.sizes import adam8_bytes
from course_lib.peers.ways.launched import quiet
from tests.course_lib.extras.quantization.test_rounding import normal, off
from tests.course_lib.peers.then_and_now.parts import gpt2

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("bitsandbytes", "transformers")),
    reason="bitsandbytes or transformers is not installed (pip install 'course_lib[huggingface]')",
)
WEIGHT = normal(96, 256, seed=20)


@pytest.fixture(scope="module")
def bnb():
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    import bitsandbytes

    return bitsandbytes


def test_nf4_is_theirs_byte_by_byte(bnb):
    packed, state = bnb.functional.quantize_4bit(WEIGHT, blocksize=64, quant_type="nf4")
    ours = quantize_4bit(WEIGHT, "nf4")
    assert torch.equal(packed.view(96, 128), ours.packed)
    assert torch.equal(state.absmax.view(96, 4), ours.scales)
    theirs = bnb.functional.dequantize_4bit(packed, state)
    assert torch.allclose(theirs, dequantize(ours), rtol=0, atol=1e-5)


def test_nested_scales_take_their_bytes_and_are_as_near(bnb):
    packed, state = bnb.functional.quantize_4bit(
        WEIGHT, blocksize=64, quant_type="nf4", compress_statistics=True
    )
    ours = quantize_4bit(WEIGHT, nested=True)
    held = (packed, state.absmax, state.state2.absmax, state.offset)
    assert ours.nbytes == sum(x.nbytes for x in held)
    theirs = bnb.functional.dequantize_4bit(packed, state)
    assert off(dequantize(ours), WEIGHT) == pytest.approx(off(theirs, WEIGHT), rel=0.01)


def test_fp4_is_theirs_but_for_the_smallest_magnitude(bnb):
    theirs = torch.sort(bnb.functional.get_4bit_type("fp4", device="cpu"))[0].double()
    ours = torch.tensor(CODES["fp4"](), dtype=torch.float64)
    smallest = (ours.abs() - 1 / 12).abs() < 1e-9
    assert torch.allclose(theirs[~smallest], ours[~smallest], atol=1e-6)
    assert theirs[smallest].abs().tolist() == pytest.approx([1 / 192, 1 / 192])


def test_the_product_with_outliers_apart_is_as_near_as_theirs(bnb):
    x = normal(64, 256, seed=21)
    x[:, [3, 50, 200]] *= 10
    found = {}
    for threshold in (0.0, 6.0):
        layer = bnb.nn.Linear8bitLt(
            256, 96, bias=False, has_fp16_weights=False, threshold=threshold
        )
        layer.load_state_dict({"weight": WEIGHT})
        layer = layer.to("cpu").eval()  # while training, theirs multiplies floats on a CPU
        with torch.no_grad():
            theirs = layer(x.half()).float()
        ours = int8_product(x, quantize_int8(WEIGHT), threshold or None)
        found[threshold] = off(theirs, x @ WEIGHT.T), off(ours, x @ WEIGHT.T)
    assert found[0.0][1] == pytest.approx(found[0.0][0], rel=0.02)
    assert max(found[6.0]) < 0.012 < 0.02 < min(found[0.0])


@pytest.mark.parametrize("count", [4096, 5000])
def test_moments_of_8_bits_take_the_bytes_of_the_formula(bnb, count):
    p = torch.nn.Parameter(normal(count))
    adamw = bnb.optim.AdamW8bit([p], lr=1e-3)
    p.grad = normal(count, seed=22)
    adamw.step()
    kept = {name: x.nbytes for name, x in adamw.state[p].items() if torch.is_tensor(x)}
    tables = kept.pop("qmap1") + kept.pop("qmap2")
    assert sum(kept.values()) == adam8_bytes(count) and tables == 2 * 4 * 256


def test_a_map_to_the_disk_needs_the_key_of_fp32_offload(bnb, tmp_path):
    from transformers import BitsAndBytesConfig, GPT2LMHeadModel

    gpt2().save_pretrained(tmp_path)
    eight = BitsAndBytesConfig(load_in_8bit=True)
    somewhere = {"transformer": "cpu", "lm_head": "disk"}
    with quiet(), pytest.raises(ValueError, match="set `llm_int8_enable_fp32_cpu_offload=True`"):
        GPT2LMHeadModel.from_pretrained(tmp_path, quantization_config=eight, device_map=somewhere)
