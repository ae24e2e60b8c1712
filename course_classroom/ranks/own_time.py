"""The ranks' own time: the time in which they run or sleep, but not queue for a processor.

On a shared machine, the wall time of a cell depends on the other users. For each thread, Linux
counts the time it ran and the time it waited for a processor (schedstat). On other systems all wall
time counts as the ranks' own. Lesson 00's deadlines are measured in this time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

SHARE = 12.0  # maximum ratio of wall time to the limit, on a machine however busy
TICK = 0.1  # seconds between two reads of the counters
ENOUGH = 0.3  # fraction of the limit at work above which a rank has no excuse
# Threads that count are the rank's main thread, and gloo's threads that run collectives. gloo's
# network threads poll a hundred times a second, with or without work.
_WORKS = "pt_gloo_runloo"


class OwnTime:
    """A wait for some processes, measured in their own time and in wall time.

    `at_work` is the longest processor time of a process, `idle` the time for which all processes
    have slept without a break, and `own` the wall time minus their queueing times.
    """

    def __init__(self, pids: Sequence[int], limit: float, work: float | None = None):
        self.pids, self.limit = list(pids), limit
        self.work = limit if work is None else min(limit, work)  # the limit of `at_work`
        self.most = limit * SHARE
        self.began = self._looked = time.monotonic()
        self.own = self.idle = self.wall = 0.0
        self._ran: dict[int, float] = {}
        self._before = {pid: counters(pid) for pid in self.pids}

    @property
    def at_work(self) -> float:
        return max(self._ran.values(), default=0.0)

    def look(self, open_pids: Sequence[int]) -> None:
        """Read the counters of running processes, which is cheap enough for a tight loop."""
        now = time.monotonic()
        self.wall, passed = now - self.began, now - self._looked
        if passed < TICK:
            return
        self._looked = now
        queued = moved = 0.0
        for pid in open_pids:
            ran, waited = _since(self._before.get(pid, {}), after := counters(pid))
            self._before[pid] = after
            self._ran[pid] = self._ran.get(pid, 0.0) + ran
            queued += waited
            moved += ran + waited
        self.own += passed - min(passed, queued)
        self.idle = self.idle + passed if moved < 0.02 * passed else 0.0

    def over(self) -> bool:
        """Return True if the limit of own, working or wall time has passed."""
        return self.own > self.limit or self.at_work > self.work or self.wall > self.most

    def nearer(self) -> tuple[float, float]:
        """Return the used seconds and the limit of own or working time, whichever is nearer."""
        both = (self.own, self.limit), (self.at_work, self.work)
        return max(both, key=lambda used: used[0] / used[1])

    def left(self) -> str:
        """Describe the ranks' remaining own time, which wall time does not show."""
        used, limit = self.nearer()
        return f"{limit:g} s of the ranks' own time, {used:.0f} s used"

    def starved(self) -> bool:
        """Return True if a failed wait is inconclusive because the ranks got too little time."""
        theirs = self.own > min(self.limit, self.wall / 2)
        enough = max(self.at_work, self.idle) > ENOUGH * self.limit
        return self.wall > 1.0 and not theirs and not enough

    def busy(self) -> str:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        load = os.getloadavg()[0]
        return f"this machine is busy (load {load:.0f} on {cores} core{'s' * (cores != 1)})"


def counters(pid: int) -> dict[int, tuple[float, float]]:
    """Return the run and queued seconds of each working thread, or an empty dict if unknown."""
    found: dict[int, tuple[float, float]] = {}
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return found
    for thread in threads:
        place = f"/proc/{pid}/task/{thread}"
        try:
            if thread != pid and not _read(f"{place}/comm").startswith(_WORKS):
                continue
            ran, queued, *_ = map(int, _read(f"{place}/schedstat").split())
        except (OSError, ValueError):
            continue
        found[thread] = ran / 1e9, queued / 1e9
    return found


def _since(before: dict, after: dict) -> tuple[float, float]:
    """Return the threads' total run time between two readings, and the longest queueing time."""
    ran = queued = 0.0
    for thread, (now_ran, now_queued) in after.items():
        then_ran, then_queued = before.get(thread, (0.0, 0.0))
        ran += now_ran - then_ran
        queued = max(queued, now_queued - then_queued)
    return ran, queued


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
