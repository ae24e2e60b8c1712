"""Timing of a host-to-device copy from pageable and pinned memory, with and without products.

The copy and the products use two streams of one GPU. Without a GPU there is nothing to measure.
Lesson 12 shows the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

KINDS = ("pageable", "pinned")


@dataclass(frozen=True)
class Times:
    """Seconds for one kind of memory: only the copy, only products, both together."""

    nbytes: int
    copy: float
    products: float
    both: float

    @property
    def bandwidth(self) -> float:
        """The bytes per second of a copy without products."""
        return self.nbytes / self.copy

    @property
    def hidden(self) -> float:
        """The share of the shorter task that overlaps the longer, from 0 to 1."""
        saved = self.copy + self.products - self.both
        return min(1.0, max(0.0, saved / min(self.copy, self.products)))

    def __str__(self) -> str:
        return (
            f"copy {1e3 * self.copy:6.2f} ms ({self.bandwidth / 1e9:5.1f} GB/s), "
            f"products {1e3 * self.products:6.2f} ms, both at once {1e3 * self.both:6.2f} ms, "
            f"{100 * self.hidden:.0f} % hidden"
        )


def at_once(host: Tensor, there: Tensor, copying: torch.cuda.Stream, products: Callable) -> None:
    """Issue the copy on a separate stream, then the products, and join the two streams."""
    computing = torch.cuda.current_stream(there.device)
    copying.wait_stream(computing)  # after earlier work on `there`
    with torch.cuda.stream(copying):
        there.copy_(host, non_blocking=True)  # asynchronous only if `host` is pinned
    there.record_stream(copying)  # its memory is not reused before the copy ends
    products()  # neither reads `there` nor writes `host`
    computing.wait_stream(copying)  # now `there` may be read


def copy_times(
    device: torch.device, nbytes: int = 2**28, repeats: int = 5
) -> dict[str, Times] | None:
    """Measure a copy of `nbytes` for each kind of host memory; return None without a GPU.

    The number of products is chosen so that they take about as long as the pinned copy. Each time
    is the minimum of `repeats` times, read when the GPU has finished.
    """
    if device.type != "cuda":
        return None
    there = torch.empty(nbytes, dtype=torch.uint8, device=device)
    hosts = {kind: torch.ones(nbytes, dtype=torch.uint8, device="cpu") for kind in KINDS}
    hosts["pinned"] = hosts["pinned"].pin_memory()
    a, b, c = (torch.ones(4096, 4096, dtype=torch.bfloat16, device=device) for _ in range(3))
    copying = torch.cuda.Stream(device)

    def least(work: Callable[[], object]) -> float:
        spent = []
        for _ in range(1 + repeats):
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            work()
            torch.cuda.synchronize(device)
            spent.append(time.perf_counter() - start)
        return min(spent[1:])  # the first run includes loading

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(a, b, out=c)

    def copy(kind: str) -> None:
        there.copy_(hosts[kind], non_blocking=True)

    alone = {kind: least(lambda kind=kind: copy(kind)) for kind in KINDS}
    count = as_long_as(alone["pinned"], least(lambda: products(16)) / 16)
    work = least(lambda: products(count))
    return {
        kind: Times(
            nbytes,
            alone[kind],
            work,
            least(lambda host=host: at_once(host, there, copying, lambda: products(count))),
        )
        for kind, host in hosts.items()
    }


def as_long_as(seconds: float, each: float) -> int:
    """Return the number of tasks of `each` seconds, one or more, that take at least `seconds`."""
    return max(1, math.ceil(seconds / each))
