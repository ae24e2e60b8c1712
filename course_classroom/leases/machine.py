"""The cores and the memory that a process may use, which can be less than the machine's totals.

A container, batch system or hub limits each user by an affinity mask or by control groups (v1 or
v2). A limit at the root applies to the node; a deeper limit applies to this user only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
NO_LIMIT = 1 << 60  # version 1 writes a number near 2**63 if there is no limit


@dataclass(frozen=True)
class Limits:
    """Limits, each None if there is none. `left` is the bytes below the tightest memory limit."""

    cores: float | None = None
    memory: int | None = None
    left: int | None = None


@dataclass(frozen=True)
class Machine:
    """A node's cores and bytes, and the maximum that this process may use."""

    cores: int
    memory: int
    own_cores: int
    own_memory: int


def look(root: Path = ROOT, own: Path = OWN) -> Machine:
    """Return this machine as seen by the process; fractional core limits are rounded down."""
    node, mine = limits(root, own, node=True), limits(root, own)
    cores = min(allowed_cores(), max(1, int(node.cores or 1 << 30)))
    memory = min(psutil.virtual_memory().total, node.memory or NO_LIMIT)
    own_cores = min(cores, max(1, int(mine.cores or cores)))
    return Machine(cores, memory, own_cores, min(memory, mine.memory or memory))


def allowed_cores() -> int:
    mask = getattr(os, "sched_getaffinity", None)  # only on Linux
    return len(mask(0)) if mask else os.cpu_count() or 1


def available_bytes(root: Path = ROOT, own: Path = OWN) -> int:
    """Return the free memory within the limits of all control groups of this process."""
    left = limits(root, own).left
    free = psutil.virtual_memory().available
    return free if left is None else min(free, left)


def limits(root: Path = ROOT, own: Path = OWN, *, node: bool = False) -> Limits:
    """Return the tightest limits around this process; with `node`, only all users' limits."""
    cores: list[float] = []
    memory: list[int] = []
    left: list[int] = []
    for folder in _folders(root, own, node):
        quota = _quota(folder)
        if quota is not None:
            cores.append(quota)
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit is not None and limit < NO_LIMIT:
            memory.append(limit)
            used = _number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
            left.append(max(0, limit - used + _reclaimable(folder)))
    return Limits(min(cores, default=None), min(memory, default=None), min(left, default=None))


def _folders(root: Path, own: Path, node: bool) -> Iterator[Path]:
    """Yield the process's control groups and their visible ancestors, or otherwise the root."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and not {"cpu", "memory"} & set(controllers.split(",")):
            continue
        top = root / controllers  # version 2 has a single tree and names no controllers
        here = top / path.strip("/")
        # A container may see its own group as the top, under a path that does not exist.
        while here != top and not node:
            if here.is_dir():
                yield here
            here = here.parent
        yield top


def _quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    used = _number(folder / "cpu.cfs_quota_us")
    period = _number(folder / "cpu.cfs_period_us")
    return used / period if used and period and used > 0 else None


def _reclaimable(folder: Path) -> int:
    """Return the bytes of cached files, which the system frees on demand."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    table = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(table.get("total_inactive_file", table.get("inactive_file", 0)))


def _number(*files: Path) -> int | None:
    for file in files:
        try:
            return int(file.read_text())
        except (OSError, ValueError):  # missing, or the word `max`
            continue
    return None
