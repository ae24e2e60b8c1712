"""The formula of a step's arithmetic against what torch counts, and the peak it is divided by."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib.gpt import GPT, Config
from course_lib.train.flops import forward_flops, measured_peak, step_flops

SIZES = {"vocabulary": 37, "length": 16, "layers": 3}
CONFIGS = {
    "gpt2": Config.gpt2(**SIZES, hidden=20, heads=5, inner=13),
    "llama": Config.llama(**SIZES, hidden=24, heads=6, kv_heads=3, inner=10),
    "recomputed": Config.llama(**SIZES, hidden=24, heads=4, kv_heads=1, inner=7, recompute=True),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_formula_is_what_torch_counts(name):
    config, rows, length = CONFIGS[name], 3, 11
    model = GPT(config.changed(recompute=False))
    ids = torch.randint(config.vocabulary, (rows, length))
    # Written out as products, so that torch's counter sees attention's two.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = model(ids).sum()
        forward = counter.get_total_flops()
        loss.backward()
    assert forward == forward_flops(config, rows, length)
    assert counter.get_total_flops() == step_flops(config, rows, length)


def test_the_peak_is_a_time_of_this_machine(monkeypatch):
    """A product of n = 1024 that takes a tenth of a second reaches 2 n³ / 0.1 flops per second."""
    import course_lib.train.flops as flops

    clock = iter(i / 10 for i in range(1000))
    monkeypatch.setattr(flops.time, "perf_counter", lambda: next(clock))
    found = measured_peak(torch.device("cpu"), torch.float32, seconds=0.5)
    assert found == pytest.approx(2 * 1024**3 / 0.1)
