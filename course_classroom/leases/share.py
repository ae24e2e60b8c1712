"""What one notebook may take of a node: everything, or the fair part that an instructor set.

COURSE_LEARNERS says how many share the node. Without it the machine is one person's, and only what
that person's other notebooks hold is left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_classroom.leases.claims import Claim, living_here, names, others, used
from course_classroom.leases.gpus import visible_count
from course_classroom.leases.machine import Machine, available_bytes, look

RANK_BYTES = 260 << 20  # a rank on the CPU with torch loaded, before any model
# The same with torch's build for GPUs and a CUDA context, of the host. Not measured yet.
GPU_RANK_BYTES = 1 << 30
# Address space that a rank counts as its data (with threads' stacks) after its first cells: 384 MB.
LEAST_DATA = 512 << 20


@dataclass(frozen=True)
class Part:
    """The most that one notebook takes; `learners` is 0 on a machine of one's own."""

    learners: int
    gpus: int
    cores: int
    memory: int
    rank_bytes: int = RANK_BYTES  # of the host's memory, for each rank


def learners() -> int:
    """How many share this node, 0 where nobody said."""
    text = os.environ.get("COURSE_LEARNERS", "")
    if text and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(
            f"COURSE_LEARNERS={text!r} is not a number of learners: set how many share this node, "
            "or unset it on a machine of your own"
        )
    return int(text or 0)


def part(machine: Machine, gpus: int) -> Part:
    """The part of one notebook on this machine with so many GPUs."""
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
    """The host's memory that a rank takes before any tensor, where it sees so many GPUs."""
    return GPU_RANK_BYTES if gpus else RANK_BYTES


def most_of_one(machine: Machine, many: int) -> tuple[int, int]:
    """Cores and bytes that one notebook's claim can count for, where so many share the machine."""
    if not many:
        return machine.cores, machine.memory
    return max(1, machine.cores // many), machine.memory // many


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
    check_memory(world, mine, machine, others(living_here(machine)[0]))


def default_world(gpus: int) -> int:
    """A rank for each of several GPUs, else two, where a shared node's part has room for it."""
    mine = part(look(), gpus)
    ranks = mine.gpus if mine.gpus > 1 else 2
    return min(ranks, max(1, mine.memory // mine.rank_bytes)) if mine.learners else ranks


def check_memory(world: int, part: Part, machine: Machine, others: Sequence[Claim]) -> int:
    """The bytes that so many ranks may claim; a MemoryError where they do not fit."""
    need = world * part.rank_bytes
    said = f"{world} ranks need about {need / 1e9:.1f} GB"
    if part.learners and need > part.memory:
        fits = part.memory // part.rank_bytes
        advice = f"ask for {fits}" if fits else "ask your instructor for another node"
        raise MemoryError(
            f"{said}, and a notebook's part of this node is {part.memory / 1e9:.1f} GB "
            f"({machine.memory / 1e9:.1f} GB for {part.learners} learners); {advice}"
        )
    most = most_of_one(machine, part.learners)
    left = max(0, machine.memory - used(others, most)[1])
    if need > left:
        largest = sorted(others, key=lambda claim: -claim.memory)[:6]
        held = ", ".join(f"{names([claim])} {claim.memory / 1e9:.1f} GB" for claim in largest)
        raise MemoryError(
            f"{said}, and of this node's {machine.memory / 1e9:.1f} GB {left / 1e9:.1f} GB are not "
            f"held by others; who holds what: {held}. It takes {left // part.rank_bytes} until one "
            "of them says `%ranks stop`"
        )
    return min(part.memory, left) if part.learners else need


def threads(world: int, cores: int, learners: int, env: Mapping[str, str]) -> int:
    """OpenMP threads for each rank; what the user has set wins, on a shared node up to the part."""
    fair = max(1, cores // world)
    first = env.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list has one for each level
    if not (first.isascii() and first.isdigit() and int(first) > 0):
        return fair
    return min(fair, int(first)) if learners else int(first)
