"""Whether this machine has room for so many ranks, and the environment each of them gets.

A refusal comes before anything is started, with the number that would fit. Lesson 00 starts ranks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from course_lib.classroom.leases.claims import others
from course_lib.classroom.leases.gpus import visible_count
from course_lib.classroom.leases.lease import Lease
from course_lib.classroom.leases.machine import available_bytes, look
from course_lib.classroom.leases.report import living_claims
from course_lib.classroom.leases.share import check_memory, part


def check_world(world: int, env: Mapping[str, str] = os.environ) -> None:
    """Refuse a number of ranks that cannot run here in `env`, before anything is started."""
    if world < 1:
        raise ValueError(f"a world of {world} ranks cannot be started; ask for 1 or more")
    free, machine = available_bytes(), look()
    mine = part(machine, visible_count(env))
    need = world * mine.rank_bytes
    if need > free:
        fits = max(1, free // mine.rank_bytes)
        raise MemoryError(
            f"{world} ranks need about {need / 1e9:.1f} GB and {free / 1e9:.1f} GB "
            f"are free; this machine can take {fits} (close other notebooks, or end stray ranks "
            "with `course stop --all`)"
        )
    check_memory(world, mine, machine, others(living_claims(machine)[0]))


def default_world(gpus: int) -> int:
    """How many ranks to start where nobody said, on a machine with so many GPUs."""
    return part(look(), gpus).default_world()


def environment(
    rank: int, world: int, folder: Path, lease: Lease, own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A rank's variables: who it is, for libraries that ask, `own`, and what it may use."""
    env = dict(os.environ)
    for name in ("MASTER_ADDR", "MASTER_PORT"):  # left by a launcher; no port is used here
        env.pop(name, None)
    package = str(Path(__file__).resolve().parents[2])
    env.update(
        COURSE_RUN_DIR=str(folder),
        COURSE_PARENT=str(os.getpid()),
        IPYTHONDIR=str(folder / "ipython"),
        PYTHONPATH=os.pathsep.join(p for p in (package, env.get("PYTHONPATH")) if p),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        TORCH_FR_BUFFER_SIZE=env.get("TORCH_FR_BUFFER_SIZE", "200"),
        MPLBACKEND="module://matplotlib_inline.backend_inline",
    )
    return env | dict(own or {}) | lease.variables
