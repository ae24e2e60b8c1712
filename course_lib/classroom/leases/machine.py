"""The cores and the memory that a process may really use, which the machine's numbers do not tell.

A container, a batch system or a hub gives each user a part: an affinity mask, or control groups
with a limit. What stands at the root holds for the node, what stands deeper for this user alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from course_lib.classroom import cgroup


@dataclass(frozen=True)
class Machine:
    """A node's cores and bytes, and how many of them this process may use at the most."""

    cores: int
    memory: int
    own_cores: int
    own_memory: int


def look(membership: Path = cgroup.OWN, control: Path = cgroup.ROOT) -> Machine:
    """This machine as the process finds it."""
    mask = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    cores = len(mask(0)) if mask else os.cpu_count() or 1
    node = cgroup.limits(control, membership, node=True)
    mine = cgroup.limits(control, membership)
    cores = _least(cores, _whole(node.cores))
    memory = _least(psutil.virtual_memory().total, node.memory)
    return Machine(cores, memory, _least(cores, _whole(mine.cores)), _least(memory, mine.memory))


def available_bytes(membership: Path = cgroup.OWN, control: Path = cgroup.ROOT) -> int:
    """Free memory, within the limits of every control group that this process is in."""
    return _least(psutil.virtual_memory().available, cgroup.limits(control, membership).left)


def _least(here: int, limit: int | None) -> int:
    return here if limit is None else min(here, limit)


def _whole(cores: float | None) -> int | None:
    """Whole cores, at least one: a rank is given no half of one."""
    return None if cores is None else max(1, int(cores))
