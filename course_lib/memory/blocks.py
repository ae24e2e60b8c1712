"""Blocks of memory on a line of time, and the curve that is their sum.

What a region of code needs is the top of that curve; what it leaves behind is its end.
Lesson 01 draws the curve from a run; lesson 09 reads the sixteen bytes per parameter off it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.memory.watch import Life


class Event(NamedTuple):
    """One report of the allocator: more than 0 bytes taken, or less than 0 given back."""

    moment: int  # nanoseconds
    pointer: int
    nbytes: int
    what: str


class Point(NamedTuple):
    """The curve from this moment on, in bytes above the start of the region."""

    seconds: float
    nbytes: int
    what: str


@dataclass(eq=False)
class Block:
    """Memory that was taken at `start` (None: before the region) and given back at `stop`."""

    start: int | None
    stop: int | None
    nbytes: int
    what: str


def from_events(events: Iterable[Event]) -> dict[int, list[Block]]:
    """Blocks by address, from events in order of time.

    A thread that torch's profiler does not follow frees without a report; that an address is handed
    out again proves it. A free of memory that was never reported taken is not this region's.
    """
    by_pointer: dict[int, list[Block]] = {}
    for event in events:
        blocks = by_pointer.setdefault(event.pointer, [])
        running = blocks[-1] if blocks and blocks[-1].stop is None else None
        if running is not None:
            running.stop = event.moment
        if event.nbytes > 0:
            blocks.append(Block(event.moment, None, event.nbytes, event.what))
    return by_pointer


def merge(by_pointer: dict[int, list[Block]] | None, lives: Iterable[Life]) -> list[Block]:
    """One list of blocks from two witnesses: the allocator's events (if any) and the watch's lives.

    The allocator knows of temporaries inside an operation. The watch knows when memory from before
    the region went, and sees frees in every thread. Where both know a block, it ends when the first
    of the two says so.
    """
    reports = by_pointer or {}
    blocks = [block for blocks in reports.values() for block in blocks]
    for life in lives:
        reported = _block_at(reports.get(life.pointer, ()), life.seen)
        if reported is not None:
            if life.died is not None and (reported.stop is None or life.died < reported.stop):
                reported.stop = life.died
        elif life.origin == "made":
            blocks.append(Block(life.seen, life.died, life.nbytes, life.what))
        # Met as an argument and never reported: from before the region as well. Without reports
        # nobody knows, and it is left out.
        elif life.died is not None and (life.origin == "before" or by_pointer is not None):
            blocks.append(Block(None, life.died, life.nbytes, life.what))
    return blocks


def _block_at(blocks: Sequence[Block], moment: int) -> Block | None:
    """The block of one address that is alive at `moment`."""
    at = bisect_right([block.start for block in blocks], moment) - 1
    if at < 0 or (blocks[at].stop is not None and blocks[at].stop < moment):
        return None
    return blocks[at]


def curve(blocks: Iterable[Block], start: int, stop: int) -> list[Point]:
    """The sum of all blocks between `start` and `stop`, counted from 0 at `start`."""
    steps: list[tuple[int, int, str]] = []
    for block in blocks:
        if block.start is not None and start <= block.start <= stop:
            steps.append((block.start, block.nbytes, block.what))
        if block.stop is not None and start <= block.stop <= stop:
            steps.append((block.stop, -block.nbytes, f"end of {block.what}"))
    steps.sort(key=lambda step: step[0])
    points, total = [Point(0.0, 0, "start")], 0
    for moment, change, what in steps:
        total += change
        points.append(Point((moment - start) / 1e9, total, what))
    return points
