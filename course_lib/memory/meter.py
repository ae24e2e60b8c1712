"""The meter, which measures the tensor bytes that a region of code needs above its start.

On a CPU it merges torch.profiler's allocator events with a watch over storages; on CUDA it asks the
allocator. Lesson 01 measures a ring with it, and later lessons compare every formula with it.

The profiler misses frees of memory made before the region (such as gradients of the last step) and
frees in threads that it does not follow. The watch misses temporaries inside an operation, such as
gloo's copy of an input. It corrects when blocks end, or replaces a profiler that is in use.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import UntypedStorage

from course_lib.memory.blocks import (
    AllocatorEvents,
    MemoryPoint,
    curve,
    from_events,
    merge,
    profiler_is_free,
)
from course_lib.memory.lifetimes import StorageWatch
from course_lib.memory.release_wait import wait_until_settled
from course_lib.memory.storages import alive
from course_lib.memory.tiers import rank_computes_on

# Open CUDA regions, outermost first. Before one resets the allocator's peak, the others note it.
_open_on_cuda: ContextVar[tuple[Peak, ...]] = ContextVar("open_on_cuda", default=())


class Peak:
    """`with peak() as p:`, followed by `p.made_and_alive()` and these results.

    bytes      the most bytes in use at once above the start of the region, at least 0
    held_after the bytes left by the region, negative if it freed more old memory than it made
    timeline   (seconds, nbytes, what) after every change, in bytes above the start
    by         the instrument: "profiler", "watch" (no temporaries in operations) or "allocator"
    """

    bytes: int
    held_after: int
    timeline: list[MemoryPoint]
    by: str

    def __init__(self, device: str | torch.device | None, by: str | None):
        self.device = torch.device(device or rank_computes_on())
        ways = ("allocator",) if self.device.type == "cuda" else ("profiler", "watch")
        if by is not None and by not in ways:
            raise ValueError(
                f"the peak on {self.device.type} is measured by {' or '.join(ways)}, not {by!r}"
            )
        self._wanted = by
        self._watch: StorageWatch | None = None
        self._events: AllocatorEvents | None = None
        self._start = 0

    def __getattr__(self, name: str) -> object:
        if name in Peak.__annotations__:
            raise RuntimeError(f"{name} is known only after the region: read it after the with")
        raise AttributeError(f"a peak has no {name}")

    def made_and_alive(self) -> Iterator[UntypedStorage]:
        """Yield the storages that the region made and that still exist."""
        if self._watch is None:
            raise RuntimeError("this region has not been entered")
        return self._watch.made_and_alive()

    def __repr__(self) -> str:
        if "by" not in vars(self):
            return "Peak(open)" if self._watch is not None else "Peak(not entered)"
        return f"Peak({self.bytes:,} bytes by {self.by}, {self.held_after:,} held after)"

    # ---- the region
    def __enter__(self) -> Peak:
        if self._watch is not None:
            raise RuntimeError("a peak measures one region: write `with peak() as p:` again")
        wait_until_settled()  # memory about to be freed would count as freed by the region
        self._watch = StorageWatch(alive(), keep_dead=True)
        if self.device.type == "cuda":
            self._enter_cuda()
        elif self._wanted != "watch":
            if profiler_is_free():
                self._events = AllocatorEvents()
            elif self._wanted == "profiler":
                self._watch = None
                raise RuntimeError(
                    "no profiler to measure with: one is running already (an outer peak(), or your "
                    "own torch.profiler), which a second would end, or this torch has none. Omit "
                    "by='profiler', and the watch measures instead"
                )
        self._start = time.time_ns()
        self._watch.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._watch.__exit__(*exception)
        wait_until_settled()  # a backend's thread may release its copies late
        stop = time.time_ns()
        lives = [life for life in self._watch.lives() if life.device == self.device.type]
        events = self._events.stop() if self._events is not None else None
        self._events = None
        if self._wanted == "profiler" and events is None and self.device.type == "cpu":
            raise RuntimeError("a second profiler was started inside the region and ended this one")
        reports = None if events is None else from_events(events)
        points = curve(merge(reports, lives), self._start, stop)
        self.timeline = points
        self.bytes = max(point.nbytes for point in points)
        self.held_after = points[-1].nbytes
        self.by = "watch" if events is None else "profiler"
        if self.device.type == "cuda":
            self._exit_cuda()

    def _enter_cuda(self) -> None:
        torch.cuda.synchronize(self.device)
        outer = _open_on_cuda.get()
        for region in outer:
            region._note_cuda()
        torch.cuda.reset_peak_memory_stats(self.device)
        self._base = self._high = torch.cuda.memory_allocated(self.device)
        self._token = _open_on_cuda.set((*outer, self))

    def _note_cuda(self) -> None:
        self._high = max(self._high, torch.cuda.max_memory_allocated(self.device))

    def _exit_cuda(self) -> None:
        """Set the bytes from the allocator (rounded up to 512), and the timeline from the watch."""
        torch.cuda.synchronize(self.device)
        self._note_cuda()
        _open_on_cuda.reset(self._token)
        self.bytes = self._high - self._base
        self.held_after = torch.cuda.memory_allocated(self.device) - self._base
        self.by = "allocator"


def peak(*, device: str | torch.device | None = None, by: str | None = None) -> Peak:
    """Measure a region: `with peak() as p: ...`, then `p.bytes`.

    `device` is the device to measure, by default the one on which this rank computes. `by` is
    "profiler" or "watch" on a CPU (by default "profiler" unless one runs already), and "allocator"
    on CUDA. Regions may be nested, and the watch measures the inner ones. Allocations in other
    threads are not seen on a CPU. Entry and exit wait until backend threads have released their
    copies. On CUDA, `reset_peak_memory_stats` is called at entry.
    """
    return Peak(device, by)
