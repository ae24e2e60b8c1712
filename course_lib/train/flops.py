"""A step's arithmetic by formula, and this machine's peak; MFU is their quotient.

Model flops count the products of the mathematics, so a recomputed block counts once. The peak is
measured here with a matrix product, not taken from a data sheet. Lesson 08.
"""

from __future__ import annotations

import time

import torch

from course_lib.estimate.time.work import passes
from course_lib.gpt import Config

TOGETHER = 10  # products on a GPU between two clock readings


def forward_flops(config: Config, rows: int, length: int) -> int:
    """Count the flops of one forward pass: two for each multiply-add of the dense products.

    Attention counts all pairs of tokens, including masked pairs, as published figures do.
    """
    return passes(config, rows, length).forward.flops


def step_flops(config: Config, rows: int, length: int) -> int:
    """Count both passes: each product of the forward pass has two in the backward pass."""
    return 3 * forward_flops(config, rows, length)


def measured_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.2) -> float:
    """Measure the flops per second of a square product, the best result within `seconds`."""
    n, timed = 1024, _seconds_on_cpu
    if device.type == "cuda":  # three matrices use at most a quarter of the free memory
        free, _ = torch.cuda.mem_get_info(device)
        n, timed = 8192 if 4 * 3 * 8192**2 * dtype.itemsize <= free else 4096, _seconds_on_gpu
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    a @ b  # the first product loads libraries
    while True:
        best = min(best, timed(a, b))
        if time.perf_counter() > end:
            return 2 * n**3 / best


def _seconds_on_cpu(a: torch.Tensor, b: torch.Tensor) -> float:
    began = time.perf_counter()
    a @ b
    return time.perf_counter() - began


def _seconds_on_gpu(a: torch.Tensor, b: torch.Tensor) -> float:
    """Measure a product's seconds by the GPU's clock, as the mean of several, because a launch and
    a wait for each product would be counted as arithmetic."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(TOGETHER):
        a @ b
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3 / TOGETHER
