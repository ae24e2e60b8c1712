"""GPUs to be leased: which ones this process sees, by names that hold, and which of them are free.

A GPU is passed on under the name it had (an index or a UUID in CUDA_VISIBLE_DEVICES) and locked
under its UUID, because inside a batch job an index counts the job's own GPUs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.classroom.leases.claims import Claim, holders
from course_lib.classroom.leases.folder import try_lock
from course_lib.prepared.torch_build import gpu_count

CONTEXT_BYTES = 512 << 20  # of a GPU's memory, for each rank's CUDA context and its libraries


@dataclass(frozen=True)
class Gpu:
    """`name` as CUDA_VISIBLE_DEVICES has it; `key`, by which everybody on the node knows it."""

    name: str
    key: str


@dataclass
class Grant:
    """The GPUs that were had, the locks on them, and the claims that stood in the way."""

    gpus: list[Gpu]
    locks: list[int] = field(default_factory=list)
    shared: bool = False
    in_the_way: list[Claim] = field(default_factory=list)
    unclaimed: int = 0  # locked, and no claim says by whom


def visible(env: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The GPUs that torch would use here, in its order."""
    count, chosen = visible_count(env), env.get("CUDA_VISIBLE_DEVICES")
    if count == 0:
        return []
    names = [str(n) for n in range(count)] if chosen is None else chosen.split(",")[:count]
    known = uuids()
    return [Gpu(name.strip(), _key(name.strip(), known)) for name in names]


def visible_count(env: Mapping[str, str]) -> int:
    """How many GPUs torch would use here."""
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    return 0 if chosen is not None and not chosen.strip() else gpu_count()


def uuids() -> list[str]:
    """The UUIDs of the GPUs that the driver shows, by index; none where it cannot be asked."""
    return [row[0] for row in _asked("uuid")]


def _asked(fields: str) -> list[list[str]]:
    """nvidia-smi's answer for each GPU: it makes no context, as torch would here."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    ask = [tool, f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        told = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line for line in told.splitlines() if line.startswith("GPU-")]
    return [[cell.strip() for cell in line.split(",")] for line in lines]


def check_room(world: int, gpus: Sequence[Gpu]) -> None:
    """Refuse ranks whose contexts are more than a GPU has free, where the driver says how much."""
    free = {
        uuid: int(left[:-4]) << 20 for uuid, left in _asked("uuid,memory.free") if "MiB" in left
    }
    for i, gpu in enumerate(gpus[:world]):
        ranks, left = len(range(i, world, len(gpus))), free.get(gpu.key)
        need = ranks * CONTEXT_BYTES
        if left is not None and need > left:
            raise MemoryError(
                f"{ranks} rank(s) on GPU {gpu.name} take about {need / 1e9:.1f} GB of its memory "
                f"before any tensor, and {left / 1e9:.1f} GB are free; it can take "
                f"{left // CONTEXT_BYTES}. `nvidia-smi` shows which programs hold the rest; after "
                "`%env CUDA_VISIBLE_DEVICES=` the ranks compute on the CPU"
            )


def _key(name: str, known: Sequence[str]) -> str:
    if name.isdigit():
        return known[int(name)] if int(name) < len(known) else name
    return next((uuid for uuid in known if uuid.startswith(name)), name)  # may be shortened


def lock_path(folder: Path, gpu: Gpu) -> Path:
    return folder / f"gpu-{re.sub(r'[^A-Za-z0-9.-]', '_', gpu.key)}"


def grant(
    folder: Path, seen: Sequence[Gpu], wanted: int, others: Sequence[Claim], may_share: bool
) -> Grant:
    """Up to `wanted` GPUs that nobody holds, else one with others where that is allowed."""
    held = holders(others)
    got = Grant([])
    for gpu in seen:
        if gpu.key in held:
            got.in_the_way.extend(held[gpu.key])
        elif len(got.gpus) < wanted:
            try:
                lock = try_lock(lock_path(folder, gpu))
            except BaseException:
                release(got.locks)
                raise
            if lock is None:
                got.unclaimed += 1
            else:
                got.gpus.append(gpu)
                got.locks.append(lock)
    together = [gpu for gpu in seen if gpu.key in held]
    if not got.gpus and may_share and together:
        got.gpus, got.shared = (
            [min(together, key=lambda gpu: len({c.pid for c in held[gpu.key]}))],
            True,
        )
    return got


def release(locks: list[int]) -> None:
    while locks:
        os.close(locks.pop())
