"""The time that ranks have had for themselves: at work or asleep, not queueing for a processor.

On a machine that many share, a cell's seconds on the wall say little about the cell. Linux counts
for each thread how long it ran and how long it was ready to run and did not (schedstat); elsewhere
all of the time on the wall counts as the ranks' own. Lesson 00's deadlines are of this time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

SHARE = 12.0  # times its limit that something may take by the wall, on a machine however busy
TICK = 0.1  # seconds between two looks at the counters
ENOUGH = 0.3  # of the limit at work: who has had this much by the end has no excuse
# The threads that work for a cell: the rank's first one, and gloo's that carry out collectives.
# gloo's network threads look round a hundred times a second whether there is work or not.
_WORKS = "pt_gloo_runloo"


class OwnTime:
    """One wait for some processes, by their own clock and by the wall's.

    `at_work` is the most that one of them has had of a processor, `idle` how long all of them have
    been asleep without a break, `own` the wall's time less what they queued, one after another.
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
        """Read the clocks of those that have not ended; cheap enough for every turn of a loop."""
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
        """Whether the limit has passed: of their own time, or of all that the wall allows."""
        return self.own > self.limit or self.at_work > self.work or self.wall > self.most

    def nearer(self) -> tuple[float, float]:
        """Seconds used, and their limit: of the ranks' own time, or of their time at work."""
        both = (self.own, self.limit), (self.at_work, self.work)
        return max(both, key=lambda used: used[0] / used[1])

    def left(self) -> str:
        """When the wait will be ended, which the seconds on the wall alone do not say."""
        used, limit = self.nearer()
        return f"{limit:g} s of the ranks' own time, {used:.0f} s used"

    def starved(self) -> bool:
        """Whether a wait that ended badly says nothing, because too little of it was theirs."""
        theirs = self.own > min(self.limit, self.wall / 2)
        enough = max(self.at_work, self.idle) > ENOUGH * self.limit
        return self.wall > 1.0 and not theirs and not enough

    def busy(self) -> str:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        load = os.getloadavg()[0]
        return f"this machine is busy (load {load:.0f} on {cores} core{'s' * (cores != 1)})"


def counters(pid: int) -> dict[int, tuple[float, float]]:
    """Seconds run and seconds queued of each thread that works for a cell; empty where unknown."""
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
    """What the threads have run since, together, and the longest that one of them has queued."""
    ran = queued = 0.0
    for thread, (now_ran, now_queued) in after.items():
        then_ran, then_queued = before.get(thread, (0.0, 0.0))
        ran += now_ran - then_ran
        queued = max(queued, now_queued - then_queued)
    return ran, queued


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
