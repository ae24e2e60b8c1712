"""A test with ranks started as in a notebook: an all-reduce, its sum, and its time by size.

A failure is reported with the cluster's explanation, first cause first. Times are shown but not
judged. Lesson 01 explains the operation and both columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from course_classroom.doctor.finding import Finding, size

if TYPE_CHECKING:
    import torch

    from course_classroom.ranks.cluster import Cluster

NAME = "all-reduce"
SIZES = [1 << 10 << 2 * step for step in range(8)]  # 1 kB to 16 MB in steps of 4
DEADLINE = 60.0
NUMBERS = 1000
REMEDY = (
    "look for a cause in the lines above; `course stop --all` ends stray ranks. For the log of "
    "NCCL, run NCCL_DEBUG=INFO course doctor"
)
SUM = f"""
x = torch.arange({NUMBERS}, device=device, dtype=torch.float32) * (rank + 1)
dist.all_reduce(x, group=group)
"""
TIMES = f"""
from course_classroom.doctor.timing import time_all_reduce
seconds = time_all_reduce({SIZES}, device, group)
"""


@dataclass
class RealRanks:
    """The check; after its run, `rows` holds the bandwidths and `backend` the backend's name."""

    world: int = 2
    rows: list[dict[str, Any]] = field(default_factory=list)
    backend: str = ""

    def look(self) -> list[Finding]:
        from course_classroom.ranks.cluster import Cluster

        cluster = Cluster(self.world, notebook="course doctor", idle_minutes=0)
        try:
            cluster.start()
        except (RuntimeError, MemoryError, OSError) as error:
            # Other users' memory concerns the people on this node and must not appear in a report.
            why = str(error).partition(". Holders: ")[0]
            return [Finding(NAME, "bad", f"{self.world} ranks cannot start: {why}", REMEDY)]
        try:
            self.backend = cluster.backend
            found = real_sum(cluster)
            if found.level == "bad":
                return [found]
            return [found, self._bandwidth(cluster), *lease(cluster)]
        finally:
            cluster.stop()

    def _bandwidth(self, cluster: Cluster) -> Finding:
        ended = cluster.run(TIMES, deadline=DEADLINE, checked=False, label="the timing")
        if ended.failed:
            return Finding("bandwidth", "bad", _story(ended), REMEDY)
        self.rows = rows(cluster.pull("seconds"), self.world, cluster.backend)
        best = max(self.rows, key=lambda row: row["gb_per_s"])
        first = self.rows[0]
        told = f"{size(first['bytes'])} in {first['seconds'] * 1e3:.2g} ms; at most "
        told += f"{best['gb_per_s']:.2g} GB/s, at {size(best['bytes'])}"
        return Finding("bandwidth", "ok", told)


def real_sum(cluster: Cluster) -> Finding:
    """Run one all-reduce on running ranks and check that every rank has the sum."""
    ended = cluster.run(SUM, deadline=DEADLINE, label="the all-reduce")
    if ended.failed:
        return Finding(NAME, "bad", _story(ended), REMEDY)
    wrong = wrong_ranks(cluster.pull("x"), cluster.world)
    if wrong:
        told = f"the sum is wrong on rank(s) {', '.join(map(str, wrong))}, over {cluster.backend}"
        return Finding(NAME, "bad", told, REMEDY)
    where = ", ".join(dict.fromkeys(cluster.pull("str(device)")))
    why = cluster.pull("me.why", [0])[0]
    told = f"{cluster.world} ranks, {cluster.backend} on {where}: right on every rank. {why}"
    return Finding(NAME, "ok", told)


def lease(cluster: Cluster) -> list[Finding]:
    """Report a lease smaller than requested, without the names of other users."""
    held = cluster.lease
    if held is None or not held.told:
        return []
    if held.claim is None:
        remedy = "set COURSE_LEASES to a folder that is writable for all learners of this node"
        return [Finding("leases", "note", held.told[0], remedy)]
    count = len(held.gpus or [])
    told = f"others hold GPUs of this node; the ranks above got {count} and ran on those"
    return [
        Finding("leases", "note", told, "wait for them, or run `course status --all` to see who")
    ]


def wrong_ranks(sums: list[torch.Tensor], world: int) -> list[int]:
    """Return the ranks whose sum differs from the sum of all ranks' inputs."""
    import torch

    # Rank r adds r + 1 times the numbers; integers below 2**24 are exact in float32.
    expected = torch.arange(NUMBERS, dtype=torch.float32) * (world * (world + 1) // 2)
    return [rank for rank, got in enumerate(sums) if not torch.equal(got, expected)]


def rows(seconds: list[list[float]], world: int, backend: str) -> list[dict[str, Any]]:
    """Return a row for each size, with the time of the slowest rank.

    Like the ledger, `gb_per_s` counts 2(n−1)/n times the size, which each rank must send.
    """
    return [
        {
            "collective": "all_reduce",
            "world": world,
            "backend": backend,
            "bytes": count,
            "seconds": slowest,
            "gb_per_s": 2 * (world - 1) / world * count / slowest / 1e9,
        }
        for count, slowest in zip(SIZES, map(max, zip(*seconds, strict=True)), strict=True)
    ]


def _story(ended: Any) -> str:
    from course_classroom.notebook.magic import explain

    return explain(ended, DEADLINE)
