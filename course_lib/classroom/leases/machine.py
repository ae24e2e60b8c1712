"""The cores and the memory that a process may really use, which the machine's numbers do not tell.

A container, a batch system or a hub gives each user a part: an affinity mask, or control groups
with a limit. What stands at the root holds for the node, what stands deeper for this user alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

MEMBERSHIP, CONTROL = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """A node's cores and bytes, and how many of them this process may use at the most."""

    cores: int
    memory: int
    own_cores: int
    own_memory: int


def look(membership: Path = MEMBERSHIP, control: Path = CONTROL) -> Machine:
    """This machine as the process finds it."""
    mask = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    cores = len(mask(0)) if mask else os.cpu_count() or 1
    cores = min([cores, *_quotas([control])])
    memory = min([psutil.virtual_memory().total, *(most for most, _ in _limits([control]))])
    mine = groups(membership, control)
    return Machine(
        cores,
        memory,
        own_cores=min([cores, *_quotas(mine)]),
        own_memory=min([memory, *(most for most, _ in _limits(mine))]),
    )


def available_bytes(membership: Path = MEMBERSHIP, control: Path = CONTROL) -> int:
    """Free memory, within the limits of every control group that this process is in."""
    left = [most - used for most, used in _limits(groups(membership, control))]
    return max(0, min([psutil.virtual_memory().available, *left]))


def groups(membership: Path, control: Path) -> list[Path]:
    """The folders of this process's control groups (version 2), the innermost first."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    inner = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = control / inner.lstrip("/")
    return [each for each in (folder, *folder.parents) if each.is_relative_to(control)]


def _quotas(folders: list[Path]) -> Iterator[int]:
    """Whole cores, at least one, wherever processor time is limited."""
    for folder in folders:
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                yield max(1, int(quota) // int(period))
        except (OSError, ValueError):
            continue


def _limits(folders: list[Path]) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes wherever memory is limited."""
    for folder in folders:
        try:
            limit = (folder / "memory.max").read_text().strip()
            if limit == "max":
                continue
            used = int((folder / "memory.current").read_text())
            # Files read a while ago count as used, and are given up for the asking.
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield int(limit), used - int(stat.get("inactive_file", 0))
        except (OSError, ValueError):
            continue
