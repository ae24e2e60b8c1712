"""How much arithmetic a step is by formula, and what this machine can do: MFU is their quotient.

Model flops count the products that the mathematics needs, whatever was computed twice: a
recomputed block counts once. The peak is what a product reached here, not a data sheet. Lesson 08.
"""

from __future__ import annotations

import time

import torch

from course_lib.estimate.time.work import passes
from course_lib.gpt import Config

TOGETHER = 10  # products on a GPU between two looks at its clock


def forward_flops(config: Config, rows: int, length: int) -> int:
    """Two for each multiplication and addition of the products of one forward, dense.

    Attention counts all pairs of tokens, the hidden ones too, as published figures do.
    """
    return passes(config, rows, length).forward.flops


def step_flops(config: Config, rows: int, length: int) -> int:
    """Forward and backward: each product of the forward has two in the backward."""
    return 3 * forward_flops(config, rows, length)


def measured_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.2) -> float:
    """Flops per second of a square product, the best of several in `seconds`."""
    n, timed = 1024, _seconds_on_cpu
    if device.type == "cuda":  # three matrices take a quarter of what is free at the most
        free, _ = torch.cuda.mem_get_info(device)
        n, timed = 8192 if 4 * 3 * 8192**2 * dtype.itemsize <= free else 4096, _seconds_on_gpu
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    a @ b  # the first one loads libraries
    while True:
        best = min(best, timed(a, b))
        if time.perf_counter() > end:
            return 2 * n**3 / best


def _seconds_on_cpu(a: torch.Tensor, b: torch.Tensor) -> float:
    began = time.perf_counter()
    a @ b
    return time.perf_counter() - began


def _seconds_on_gpu(a: torch.Tensor, b: torch.Tensor) -> float:
    """A product's seconds by the GPU's clock, the mean of several: a launch and a wait for each
    would be counted as arithmetic."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(TOGETHER):
        a @ b
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3 / TOGETHER
