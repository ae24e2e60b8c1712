"""Tokens per second against the batch: a forward's time is a constant and a part for each row.

The constant is the weights' way to the rank, which every row of the batch shares; so throughput
grows with the batch until computing takes as long. Two constants, fitted to what was measured here.
Lesson 14.
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
    """Seconds of one forward: `fixed`, whatever the batch, and `row` for each row of a rank."""

    fixed: float
    row: float

    def seconds(self, rows: float) -> float:
        """For so many rows of each rank, one after the other."""
        return self.fixed + self.row * rows

    def tokens_per_second(self, rows: float, *, ranks: int = 1) -> float:
        """Of all ranks together, each with so many rows of its own."""
        return ranks * rows / self.seconds(rows)


def fit(measured: Mapping[int, float]) -> Forward:
    """(rows of a rank → seconds of a forward) → the two constants, none below 0: least squares of
    the relative errors."""
    if len(measured) < 2:
        raise ValueError(f"two constants need two batches or more, and here is {len(measured)}")
    if not all(rows > 0 and seconds > 0 for rows, seconds in measured.items()):
        raise ValueError("every batch has 1 row or more and took some time")
    rows = torch.tensor(list(measured), dtype=torch.float64)
    seconds = torch.tensor(list(measured.values()), dtype=torch.float64)
    parts = torch.stack((1 / seconds, rows / seconds), 1)  # (batches, 2): each part's share
    fixed, row = torch.linalg.lstsq(parts, torch.ones(len(rows), 1).double()).solution[:, 0]
    if fixed < 0 or row < 0:  # the better of the two lines with one constant alone
        ones = [parts[:, i].sum() / parts[:, i].square().sum() for i in (0, 1)]
        off = [(parts[:, i] * ones[i] - 1).square().sum() for i in (0, 1)]
        fixed, row = (ones[0], 0.0) if off[0] < off[1] else (0.0, ones[1])
    return Forward(float(fixed), float(row))


def meeting_rows(streamed: Forward, together: Forward, n: int) -> float | None:
    """The rows of all ranks at which `n` ranks with streamed weights, each with its own rows, and
    the same ranks with a cut model, all with all rows, write equally many tokens a second.

    streamed.fixed + streamed.row·B/n = together.fixed + together.row·B, solved for B; None where
    one of the two is the faster one at every batch. Where both compute equally fast and bytes alone
    make the difference, it is the break-even of the bytes.
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
    """Seconds of one forward for each batch, the median of `repeat` runs of the slowest rank.

    `write(b)` makes `forwards` forwards of b rows, on every rank of the group alike. A first run of
    each batch is not counted.
    """
    if forwards < 1 or repeat < 1:
        raise ValueError(f"forwards={forwards} and repeat={repeat} have to be 1 or more")
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
