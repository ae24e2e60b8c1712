"""GPUs for leases: the visible GPUs, their stable names, and the free GPUs.

A GPU is passed to ranks under its existing name (an index or a UUID in CUDA_VISIBLE_DEVICES) but
claimed under its UUID, because inside a batch job an index counts only the job's GPUs.
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
    """A GPU with its `name` in CUDA_VISIBLE_DEVICES and the `key` by which all users know it."""

    name: str
    key: str


def visible(env: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Return the GPUs that torch would use here, in torch's order."""
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
    """Raise an error if the ranks' CUDA contexts exceed a GPU's known free memory."""
    free = {gpu.uuid: gpu.free for gpu in (listed() if gpus else [])}
    for i, gpu in enumerate(gpus[:world]):
        ranks, left = len(range(i, world, len(gpus))), free.get(gpu.key)
        need = ranks * CONTEXT_BYTES
        if left is not None and need > left:
            raise MemoryError(
                f"{ranks} rank(s) on GPU {gpu.name} need about {need / 1e9:.1f} GB of its memory "
                f"before they allocate tensors, but {left / 1e9:.1f} GB are free, enough for "
                f"{left // CONTEXT_BYTES}. `nvidia-smi` shows the programs that use the rest. "
                "After `%env CUDA_VISIBLE_DEVICES=` the ranks compute on the CPU"
            )


def _key(name: str, known: Sequence[str]) -> str:
    if name.isdigit():
        return known[int(name)] if int(name) < len(known) else name
    return next((uuid for uuid in known if uuid.startswith(name)), name)  # may be shortened


def grant(
    seen: Sequence[Gpu], wanted: int, others: Sequence[Claim], may_share: bool
) -> tuple[list[Gpu], bool, list[Claim]]:
    """Return up to `wanted` free GPUs, or a GPU to share if allowed; then True if it is shared, and
    the claims in the way."""
    held = holders(others)
    free = [gpu for gpu in seen if gpu.key not in held]
    taken = [gpu for gpu in seen if gpu.key in held]
    in_the_way = [claim for gpu in taken for claim in held[gpu.key]]
    if free or not taken or not may_share:
        return free[:wanted], False, in_the_way
    return [min(taken, key=lambda gpu: len({c.pid for c in held[gpu.key]}))], True, in_the_way
