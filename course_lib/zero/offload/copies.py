"""Time a host-to-device copy: pageable against pinned memory, alone and beside products.

Two streams of one GPU, asked in one order. Where there is no GPU there is nothing to measure.
Lesson 12 measures it.
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
    """Seconds of one kind of memory: the copy alone, products alone, both asked at once."""

    nbytes: int
    copy: float
    products: float
    both: float

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the copy alone."""
        return self.nbytes / self.copy

    @property
    def hidden(self) -> float:
        """The share of the shorter of the two that runs under the longer: 0 one after the other,
        1 wholly overlapped."""
        saved = self.copy + self.products - self.both
        return min(1.0, max(0.0, saved / min(self.copy, self.products)))

    def __str__(self) -> str:
        return (
            f"copy alone {1e3 * self.copy:6.2f} ms ({self.bandwidth / 1e9:5.1f} GB/s), "
            f"products alone {1e3 * self.products:6.2f} ms, both {1e3 * self.both:6.2f} ms: "
            f"{100 * self.hidden:.0f} % hidden"
        )


def at_once(host: Tensor, there: Tensor, copying: torch.cuda.Stream, products: Callable) -> None:
    """Ask for the copy on a stream of its own, then for the products; join the two streams."""
    computing = torch.cuda.current_stream(there.device)
    copying.wait_stream(computing)  # what was asked of `there` before comes first
    with torch.cuda.stream(copying):
        there.copy_(host, non_blocking=True)  # asynchronous only if `host` is pinned
    there.record_stream(copying)  # its memory is given to no other tensor before the copy ends
    products()  # neither reads `there` nor writes `host`
    computing.wait_stream(copying)  # from here on `there` may be read


def copy_times(
    device: torch.device, nbytes: int = 2**28, repeats: int = 5
) -> dict[str, Times] | None:
    """The times of a copy of `nbytes` by kind of host memory; None without a GPU.

    There are as many products as take about as long as the pinned copy. Each time is the least of
    `repeats`; the clock is read when the GPU is done.
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
        return min(spent[1:])  # the first one also loads what the work needs

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
    """How many pieces of work of `each` seconds take at least `seconds`; one or more."""
    return max(1, math.ceil(seconds / each))
