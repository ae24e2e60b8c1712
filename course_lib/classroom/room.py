"""Whether this machine has room for so many ranks, and the environment each of them gets.

A refusal comes before anything is started, with the number that would fit.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

RANK_BYTES = 260 << 20  # a rank with torch loaded, before any model


def check_world(world: int) -> None:
    """Refuse a number of ranks that cannot run here, before anything is started."""
    if world < 1:
        raise ValueError(f"a world of {world} ranks cannot be started; ask for 1 or more")
    free = available_bytes()
    if world * RANK_BYTES > free:
        fits = max(1, free // RANK_BYTES)
        raise MemoryError(
            f"{world} ranks need about {world * RANK_BYTES / 1e9:.1f} GB and {free / 1e9:.1f} GB "
            f"are free; this machine can take {fits} (close other notebooks, or end stray ranks "
            "with `course stop --all`)"
        )


def available_bytes() -> int:
    """Free memory, within the limit of a container where there is one."""
    free = psutil.virtual_memory().available
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        return free if limit == "max" else min(free, int(limit) - int(used))
    except (OSError, ValueError):
        return free


def environment(rank: int, world: int, folder: Path) -> dict[str, str]:
    """A rank's variables: who it is, for libraries that ask, and its share of the cores."""
    env = dict(os.environ)
    for name in ("MASTER_ADDR", "MASTER_PORT"):  # left by a launcher; no port is used here
        env.pop(name, None)
    threads = max(1, (os.cpu_count() or 1) // world)
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
        OMP_NUM_THREADS=env.get("OMP_NUM_THREADS", str(threads)),
        MPLBACKEND="module://matplotlib_inline.backend_inline",
    )
    return env
