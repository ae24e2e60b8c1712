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


@pytest.mark.cpu("a clock that is played")
def test_the_peak_is_a_time_of_this_machine(monkeypatch):
    """A product of n = 1024 that takes a tenth of a second reaches 2 n³ / 0.1 flops per second."""
    import course_lib.train.flops as flops

    clock = iter(i / 10 for i in range(1000))
    monkeypatch.setattr(flops.time, "perf_counter", lambda: next(clock))
    found = measured_peak(torch.device("cpu"), torch.float32, seconds=0.5)
    assert found == pytest.approx(2 * 1024**3 / 0.1)


@pytest.mark.cpu("a GPU that is played")
@pytest.mark.parametrize(("free", "n"), [(1e9, 4096), (80e9, 8192)])
def test_on_a_gpu_ten_products_stand_between_two_looks(monkeypatch, free, n):
    """Each takes 2 ms there. A wait for every product would count its launch and the wait along."""
    done, events = [], []

    class Matrix:
        def __matmul__(self, other):
            done.append("product")

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            events.append(self)

        def record(self):
            self.at = len(done)

        def synchronize(self):
            assert self is events[-1] and done[self.at :] == []
            done.append("wait")

        def elapsed_time(self, later):
            return 2.0 * done[self.at : later.at].count("product")

    def randn(*shape, device, dtype):
        assert shape == (n, n) and device == torch.device("cuda:0") and dtype == torch.bfloat16
        return Matrix()

    monkeypatch.setattr(torch, "randn", randn)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free), int(free)))
    found = measured_peak(torch.device("cuda:0"), torch.bfloat16, seconds=0.0)
    assert found == pytest.approx(2 * n**3 / 2e-3)
    assert done[: 1 + 10 + 1] == ["product"] * 11 + ["wait"]
