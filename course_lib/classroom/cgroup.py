"""What a container or a scheduler allows this process: its quota of cores, its limit of memory.

The machine's own numbers say nothing about it. Reads control groups of both versions, the process's
own group and all those around it. No lesson derives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
NO_LIMIT = 1 << 60  # version 1 writes a number near 2**63 where there is none


@dataclass(frozen=True)
class Limits:
    """None where there is no limit. `left`: bytes below the tightest memory limit."""

    cores: float | None = None
    memory: int | None = None
    left: int | None = None


def limits(root: Path = ROOT, own: Path = OWN, *, node: bool = False) -> Limits:
    """The tightest of all limits around this process; with `node`, of those that all here share."""
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
    """The process's groups and all above them, as far as they can be seen from here; or the top."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and not {"cpu", "memory"} & set(controllers.split(",")):
            continue
        top = root / controllers  # version 2 has no controllers in its line and one tree
        here = top / path.strip("/")
        # A container may see its own group as the top, under a path that is not there.
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
    """Bytes of files kept in memory, which the system gives up when somebody asks."""
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
        except (OSError, ValueError):  # not there, or the word `max`
            continue
    return None
