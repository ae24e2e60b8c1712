"""GPUs to be leased: which ones this process sees, by names that hold, and which of them are free.

A GPU is passed on under the name it had (an index or a UUID in CUDA_VISIBLE_DEVICES) and claimed
under its UUID, because inside a batch job an index counts the job's own GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_classroom.leases.claims import Claim, holders
from course_classroom.leases.smi import CONTEXT_BYTES, listed
from course_lib.processes.torch_build import gpu_count


@dataclass(frozen=True)
class Gpu:
    """`name` as CUDA_VISIBLE_DEVICES has it; `key`, by which everybody on the node knows it."""

    name: str
    key: str


def visible(env: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The GPUs that torch would use here, in its order."""
    count, chosen = visible_count(env), env.get("CUDA_VISIBLE_DEVICES")
    if count == 0:
        return []
    names = [str(n) for n in range(count)] if chosen is None else chosen.split(",")[:count]
    known = [gpu.uuid for gpu in listed()]  # by index
    return [Gpu(name.strip(), _key(name.strip(), known)) for name in names]


def visible_count(env: Mapping[str, str]) -> int:
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    return 0 if chosen is not None and not chosen.strip() else gpu_count()


def check_room(world: int, gpus: Sequence[Gpu]) -> None:
    """Refuse ranks whose contexts are more than a GPU has free, where the driver says how much."""
    free = {gpu.uuid: gpu.free for gpu in (listed() if gpus else [])}
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


def grant(
    seen: Sequence[Gpu], wanted: int, others: Sequence[Claim], may_share: bool
) -> tuple[list[Gpu], bool, list[Claim]]:
    """Up to `wanted` GPUs that nobody holds, else one with others where that is allowed (True), and
    the claims that stood in the way."""
    held = holders(others)
    free = [gpu for gpu in seen if gpu.key not in held]
    taken = [gpu for gpu in seen if gpu.key in held]
    in_the_way = [claim for gpu in taken for claim in held[gpu.key]]
    if free or not taken or not may_share:
        return free[:wanted], False, in_the_way
    return [min(taken, key=lambda gpu: len({c.pid for c in held[gpu.key]}))], True, in_the_way
