"""Blocks of memory on a time line, and the curve of their sum.

The curve's maximum is the memory that a region of code needs, and its end is the memory that the
region leaves in use. Only torch's profiler sees memory that is allocated and freed inside one
operation, such as gloo's copy for a reduce-scatter. Lesson 01 draws the curve of a run. Lesson 09
reads sixteen bytes per parameter from it.
"""

from __future__ import annotations

import functools
import os
import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile

from course_lib.memory.lifetimes import Life


class MemoryEvent(NamedTuple):
    """One report of the allocator: positive bytes for an allocation, negative for a free."""

    moment: int  # nanoseconds
    pointer: int
    nbytes: int
    what: str


class MemoryPoint(NamedTuple):
    """A point of the curve: the bytes from this moment on, above the start of the region."""

    seconds: float
    nbytes: int
    what: str


@dataclass(eq=False)
class MemoryBlock:
    """Memory allocated at `start` (None means before the region) and freed at `stop`."""

    start: int | None
    stop: int | None
    nbytes: int
    what: str


def from_events(events: Iterable[MemoryEvent]) -> dict[int, list[MemoryBlock]]:
    """Group blocks by address, from events in order of time.

    If a thread that torch's profiler does not follow frees a block, no report arrives; the reuse of
    the address shows it. A free without a reported allocation does not belong to this region.
    """
    by_pointer: dict[int, list[MemoryBlock]] = {}
    for event in events:
        blocks = by_pointer.setdefault(event.pointer, [])
        running = blocks[-1] if blocks and blocks[-1].stop is None else None
        if running is not None:
            running.stop = event.moment
        if event.nbytes > 0:
            blocks.append(MemoryBlock(event.moment, None, event.nbytes, event.what))
    return by_pointer


def merge(
    by_pointer: dict[int, list[MemoryBlock]] | None, lives: Iterable[Life]
) -> list[MemoryBlock]:
    """Merge blocks from two sources: the allocator's events (if any) and the storages' lives.

    The allocator knows temporaries inside an operation. The watch knows when memory from before the
    region was freed, and sees frees in every thread. A block known to both ends at the earlier
    report.
    """
    reports = by_pointer or {}
    blocks = [block for blocks in reports.values() for block in blocks]
    for life in lives:
        reported = _block_at(reports.get(life.pointer, ()), life.seen)
        if reported is not None:
            if life.died is not None and (reported.stop is None or life.died < reported.stop):
                reported.stop = life.died
        elif life.origin == "made":
            blocks.append(MemoryBlock(life.seen, life.died, life.nbytes, life.what))
        # Memory seen as an argument but never reported was allocated before the region. Without any
        # reports this is unknown, so it is left out.
        elif life.died is not None and (life.origin == "before" or by_pointer is not None):
            blocks.append(MemoryBlock(None, life.died, life.nbytes, life.what))
    return blocks


def _block_at(blocks: Sequence[MemoryBlock], moment: int) -> MemoryBlock | None:
    """Return the block of one address that is alive at `moment`."""
    at = bisect_right([block.start for block in blocks], moment) - 1
    if at < 0 or (blocks[at].stop is not None and blocks[at].stop < moment):
        return None
    return blocks[at]


def curve(blocks: Iterable[MemoryBlock], start: int, stop: int) -> list[MemoryPoint]:
    """Sum all blocks between `start` and `stop`, counted from 0 at `start`."""
    steps: list[tuple[int, int, str]] = []
    for block in blocks:
        if block.start is not None and start <= block.start <= stop:
            steps.append((block.start, block.nbytes, block.what))
        if block.stop is not None and start <= block.stop <= stop:
            steps.append((block.stop, -block.nbytes, f"end of {block.what}"))
    steps.sort(key=lambda step: step[0])
    points, total = [MemoryPoint(0.0, 0, "start")], 0
    for moment, change, what in steps:
        total += change
        points.append(MemoryPoint((moment - start) / 1e9, total, what))
    return points


# ---- reports of the allocator
def profiler_is_free() -> bool:
    """Return True if no profiler runs, because a second one would silently end the first."""
    return torch.autograd.kineto_available() and not torch.autograd._profiler_enabled()


class AllocatorEvents:
    """A record of every block that torch's CPU allocator takes and frees, from now until `stop`,
    which returns the events in order of time."""

    def __init__(self) -> None:
        _quiet_once()
        self._profiler = profile(use_kineto=True, profile_memory=True)
        self._profiler.__enter__()

    def stop(self) -> list[MemoryEvent] | None:
        """Return the events, or None if a different profiler has ended this one."""
        if not torch.autograd._profiler_enabled():
            return None
        self._profiler.__exit__(None, None, None)
        events = []
        tree = self._profiler.kineto_results.experimental_event_tree()
        waiting = [(event, "torch") for event in reversed(tree)]
        while waiting:
            event, parent = waiting.pop()
            if event.tag == _EventType.Allocation:
                block = event.extra_fields
                if block.device.type == "cpu" and parent != "aten::from_file":
                    size, pointer = block.alloc_size, block.ptr
                    events.append(MemoryEvent(event.start_time_ns, pointer, size, parent))
            else:
                name = event.name if event.tag == _EventType.TorchOp else parent
                waiting.extend((child, name) for child in reversed(event.children))
        events.sort(key=lambda event: event.moment)
        return events


@functools.cache
def _quiet_once() -> None:
    """Run the profiler once with its messages off.

    Kineto prints "profiler_start" lines unless this is configured before its first run. torch also
    warns repeatedly when memory from before the region is freed, which every training step does.
    Both would only distract the reader of a notebook.
    """
    chosen = os.environ.get("KINETO_LOG_LEVEL")
    old = torch.empty(16, device="cpu")
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        os.dup2(nowhere, 2)
        with profile(use_kineto=True, profile_memory=True):
            del old
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
        if chosen is None:
            os.environ.pop("KINETO_LOG_LEVEL", None)
