"""The doctor's measurement on every rank: all-reduces of several sizes, each timed a few times.

Lesson 01 measures these times more carefully and fits a line to them.
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
    """Return the median time in seconds of an all-reduce for each size in bytes."""
    for _ in range(WARM_UP):  # the first calls also set up connections and load code
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
    # A GPU call returns before the work is done.
    if device.type == "cuda":
        torch.cuda.synchronize(device)
