"""Tokens per second by batch size: a forward pass takes a constant time plus a time for each row.

The constant is the time to stream the weights, which all rows of a batch share. Throughput
therefore grows with the batch until computation takes as long as streaming. Both constants are
fitted to local measurements. Lesson 14.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from course_lib.collectives import all_reduce
from course_lib.collectives.call import Group, device_of


@dataclass(frozen=True)
class Forward:
    """The seconds of a forward pass: `fixed` for any batch, plus `row` per row on a rank."""

    fixed: float
    row: float

    def seconds(self, rows: float) -> float:
        """Predict the seconds of a forward pass with `rows` rows on each rank."""
        return self.fixed + self.row * rows

    def tokens_per_second(self, rows: float, *, ranks: int = 1) -> float:
        """Predict the throughput of all ranks together, each with `rows` rows."""
        return ranks * rows / self.seconds(rows)


def fit(measured: Mapping[int, float]) -> Forward:
    """Fit both constants, each at least 0, to {rows on a rank: seconds of a forward pass}, by least
    squares of the relative errors."""
    if len(measured) < 2:
        raise ValueError(f"two constants need at least two batches, but here is {len(measured)}")
    if not all(rows > 0 and seconds > 0 for rows, seconds in measured.items()):
        raise ValueError("every batch must have at least 1 row and a time above 0")
    rows = torch.tensor(list(measured), dtype=torch.float64)
    seconds = torch.tensor(list(measured.values()), dtype=torch.float64)
    parts = torch.stack((1 / seconds, rows / seconds), 1)  # (batches, 2): each part's share
    fixed, row = torch.linalg.lstsq(parts, torch.ones(len(rows), 1).double()).solution[:, 0]
    if fixed < 0 or row < 0:  # the better of the two fits with only one constant
        ones = [parts[:, i].sum() / parts[:, i].square().sum() for i in (0, 1)]
        off = [(parts[:, i] * ones[i] - 1).square().sum() for i in (0, 1)]
        fixed, row = (ones[0], 0.0) if off[0] < off[1] else (0.0, ones[1])
    return Forward(float(fixed), float(row))


def meeting_rows(streamed: Forward, together: Forward, n: int) -> float | None:
    """Return the total rows at which two methods generate equally many tokens per second: streaming
    on `n` ranks with their own rows, and tensor parallelism over these ranks, each with all rows.

    It solves streamed.fixed + streamed.row·B/n = together.fixed + together.row·B for B, or returns
    None if one method is always faster. If both compute equally fast and differ only in bytes sent,
    the result is the break-even of bytes.
    """
    slower, later = streamed.fixed - together.fixed, together.row - streamed.row / n
    return slower / later if slower * later > 0 else None


def seconds_by_rows(
    write: Callable[[int], object],
    rows: Sequence[int],
    *,
    forwards: int,
    group: Group,
    repeat: int = 3,
) -> dict[int, float]:
    """Measure the seconds of a forward pass by batch: the slowest rank, median of `repeat` runs.

    `write(b)` runs `forwards` forward passes with b rows on every rank of the group. The first run
    of each batch is not counted.
    """
    if forwards < 1 or repeat < 1:
        raise ValueError(f"forwards={forwards} and repeat={repeat} must be 1 or more")
    device, found = device_of(group), {}
    for b in rows:
        times = []
        for _ in range(repeat + 1):
            dist.barrier(group)
            began = time.perf_counter()
            write(b)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - began)
        slowest = all_reduce(torch.tensor(times[1:], device=device), group, "max")
        found[b] = statistics.median(slowest.tolist()) / forwards
    return found
