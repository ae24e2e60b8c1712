"""One notebook's share of a node: everything, or the equal part that an instructor configured.

COURSE_LEARNERS is the number of learners on the node. Without it, one person has the machine, and
only claims of that person's other notebooks are subtracted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_classroom.leases.claims import Claim, living_here, names, others, used
from course_classroom.leases.gpus import visible_count
from course_classroom.leases.machine import Machine, available_bytes, look

RANK_BYTES = 260 << 20  # a rank on the CPU with torch loaded, before any model
# The host memory with torch's GPU build and a CUDA context. Not measured yet.
GPU_RANK_BYTES = 1 << 30
# Address space of a rank's data (with thread stacks) after its first cells: 384 MB.
LEAST_DATA = 512 << 20


@dataclass(frozen=True)
class Part:
    """The maximum for one notebook; `learners` is 0 on an unshared machine."""

    learners: int
    gpus: int
    cores: int
    memory: int
    rank_bytes: int = RANK_BYTES  # of host memory, for each rank


def learners() -> int:
    """Return the number of learners on this node, or 0 if it is not set."""
    text = os.environ.get("COURSE_LEARNERS", "")
    if text and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(
            f"COURSE_LEARNERS={text!r} is not a number of learners. Set it to the number of "
            "learners on this node, or unset it on your own machine"
        )
    return int(text or 0)


def part(machine: Machine, gpus: int) -> Part:
    """Return one notebook's part of this machine, which has `gpus` GPUs."""
    many, each = learners(), rank_bytes(gpus)
    if not many:
        return Part(0, gpus, machine.own_cores, machine.own_memory, each)
    return Part(
        many,
        max(1, gpus // many),
        max(1, min(machine.own_cores, machine.cores // many)),
        min(machine.own_memory, machine.memory // many),
        each,
    )


def rank_bytes(gpus: int) -> int:
    """Return the bytes of host memory of a rank without tensors that sees `gpus` GPUs."""
    return GPU_RANK_BYTES if gpus else RANK_BYTES


def most_of_one(machine: Machine, many: int) -> tuple[int, int]:
    """Return the maximum cores and bytes that one notebook's claim can count."""
    if not many:
        return machine.cores, machine.memory
    return max(1, machine.cores // many), machine.memory // many


def check_world(world: int, env: Mapping[str, str] = os.environ) -> None:
    """Raise an error, before anything starts, if `world` ranks cannot run here in `env`."""
    if world < 1:
        raise ValueError(f"a world of {world} ranks is not possible; ask for at least 1")
    free, machine = available_bytes(), look()
    mine = part(machine, visible_count(env))
    need = world * mine.rank_bytes
    if need > free:
        fits = max(1, free // mine.rank_bytes)
        raise MemoryError(
            f"{world} ranks need about {need / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free, "
            f"so this machine can take {fits} (close other notebooks, or end stray ranks with "
            "`course stop --all`)"
        )
    check_memory(world, mine, machine, others(living_here(machine)[0]))


def default_world(gpus: int) -> int:
    """Return one rank per GPU if there are several, otherwise two ranks if they fit."""
    mine = part(look(), gpus)
    ranks = mine.gpus if mine.gpus > 1 else 2
    return min(ranks, max(1, mine.memory // mine.rank_bytes)) if mine.learners else ranks


def check_memory(world: int, part: Part, machine: Machine, others: Sequence[Claim]) -> int:
    """Return the bytes that these ranks may claim; raise a MemoryError if they do not fit."""
    need = world * part.rank_bytes
    said = f"{world} ranks need about {need / 1e9:.1f} GB"
    if part.learners and need > part.memory:
        fits = part.memory // part.rank_bytes
        advice = f"ask for {fits}" if fits else "ask your instructor for another node"
        raise MemoryError(
            f"{said}, but a notebook's part of this node is {part.memory / 1e9:.1f} GB "
            f"({machine.memory / 1e9:.1f} GB for {part.learners} learners); {advice}"
        )
    most = most_of_one(machine, part.learners)
    left = max(0, machine.memory - used(others, most)[1])
    if need > left:
        largest = sorted(others, key=lambda claim: -claim.memory)[:6]
        held = ", ".join(f"{names([claim])} {claim.memory / 1e9:.1f} GB" for claim in largest)
        raise MemoryError(
            f"{said}, but of this node's {machine.memory / 1e9:.1f} GB only {left / 1e9:.1f} GB "
            f"are not held by others. Holders: {held}. There is room for {left // part.rank_bytes} "
            "until one of them runs `%ranks stop`"
        )
    return min(part.memory, left) if part.learners else need


def threads(world: int, cores: int, learners: int, env: Mapping[str, str]) -> int:
    """Return the OpenMP threads per rank: the user's setting, on a shared node up to its part."""
    fair = max(1, cores // world)
    first = env.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list has an entry per level
    if not (first.isascii() and first.isdigit() and int(first) > 0):
        return fair
    return min(fair, int(first)) if learners else int(first)
