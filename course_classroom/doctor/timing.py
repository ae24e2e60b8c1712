"""Runs on every rank of the doctor's: an all-reduce at several sizes, each timed a few times.

Lesson 01 measures the same with more care and fits a line to it.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

REPEATS = 5
WARM_UP = 2


def time_all_reduce(
    sizes: list[int], device: torch.device, group: dist.ProcessGroup
) -> list[float]:
    """The median seconds of an all-reduce of so many bytes, for each size."""
    for _ in range(WARM_UP):  # what comes first pays for connections and for code being loaded
        _median(torch.zeros(sizes[0] // 4, device=device), group)
    return [_median(torch.zeros(size // 4, device=device), group) for size in sizes]


def _median(x: torch.Tensor, group: dist.ProcessGroup) -> float:
    seconds = []
    for _ in range(WARM_UP + REPEATS):
        _settle(x.device)
        dist.barrier(group)
        _settle(x.device)
        began = time.perf_counter()
        dist.all_reduce(x, group=group)
        _settle(x.device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM_UP:])


def _settle(device: torch.device) -> None:
    # A GPU is handed its work and has not done it yet.
    if device.type == "cuda":
        torch.cuda.synchronize(device)
