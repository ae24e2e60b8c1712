"""How much arithmetic a step is by formula, and what this machine can do: MFU is their quotient.

Model flops count the products that the mathematics needs, whatever was computed twice: a
recomputed block counts once. The peak is what a product reached here, not a data sheet. Lesson 08.
"""

from __future__ import annotations

import time

import torch

from course_lib.estimate.time.work import passes
from course_lib.gpt import Config


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
    n = 4096 if device.type == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    a @ b  # the first one loads libraries
    while True:
        _wait(device)
        began = time.perf_counter()
        a @ b
        _wait(device)
        now = time.perf_counter()
        best = min(best, now - began)
        if now > end:
            return 2 * n**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
