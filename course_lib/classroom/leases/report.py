"""Who holds what on this node, as plain data for `course status --all` and for an instructor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from course_lib.classroom.leases import claims, share
from course_lib.classroom.leases.folder import Unusable, node_folder, one_at_a_time
from course_lib.classroom.leases.gpus import Gpu, visible
from course_lib.classroom.leases.machine import Machine, look


def node_report(seen: Sequence[Gpu] | None = None, machine: Machine | None = None) -> dict:
    """GPUs, cores and memory with those who hold them; `problem` says why leases are off, if so.

    Each of `claims` has user, pid, notebook, since, gpus, shared, cores, memory (bytes); each of
    `gpus` a name and the claims on it.
    """
    seen = visible() if seen is None else seen
    machine = look() if machine is None else machine
    found, problem = living_claims(machine)
    cores, memory = claims.used(found, (machine.cores, machine.memory))
    held = claims.holders(found)
    return {
        "folder": str(node_folder()),
        "problem": problem,
        "learners": share.learners(),
        "gpus": [
            {"gpu": gpu.name, "held_by": [_plain(claim) for claim in held.get(gpu.key, [])]}
            for gpu in seen
        ],
        "cores": {"total": machine.cores, "claimed": cores},
        "memory": {"total": machine.memory, "claimed": memory},
        "claims": [_plain(claim) for claim in found],
    }


def living_claims(machine: Machine) -> tuple[list[claims.Claim], str]:
    """All claims on this node, and what kept us from reading them, if anything did."""
    folder = node_folder()
    try:
        with one_at_a_time(folder, create=False) as there:
            return (claims.living(folder, machine) if there else []), ""
    except Unusable as trouble:
        return [], str(trouble)


def _plain(claim: claims.Claim) -> dict:
    facts = asdict(claim)
    del facts["started"]
    return facts
