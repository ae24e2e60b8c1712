"""A lease: taken before ranks start, reported to the learner, and returned when they have ended.

Reading and claiming happen under one lock, so two notebooks that start together never get the same
GPU. If the folder is unusable, there are no leases, but the lesson runs.
"""

from __future__ import annotations

import functools
import os
import resource
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from course_classroom.leases import claims, gpus, share
from course_classroom.leases.folder import Unusable, node_folder, one_at_a_time
from course_classroom.leases.gpus import Gpu
from course_classroom.leases.machine import Machine, look


@dataclass(eq=False)
class Lease:
    """The resources of ranks. If no GPU can be leased, `gpus` is None and no GPU is hidden."""

    world: int
    part: share.Part
    gpus: list[Gpu] | None
    on_cpu: bool
    cores: int
    threads: int  # for each rank
    memory: int
    variables: dict[str, str]  # for each rank's environment
    told: list[str] = field(default_factory=list)  # for the learner: refused requests with reasons
    claim: tuple[Path, int] | None = None

    def __post_init__(self) -> None:
        self._owner = os.getpid()
        # A process that the notebook forks must not keep the claim after the notebook has ended.
        os.register_at_fork(after_in_child=functools.partial(_let_go, weakref.ref(self)))

    def most_data(self) -> int | None:
        """Return the maximum bytes of data per rank if CPU ranks share the node; otherwise None."""
        if not self.part.learners or not self.on_cpu or not hasattr(resource, "prlimit"):
            return None
        return max(self.memory // self.world, share.LEAST_DATA)

    def bound_memory(self, pids: Iterable[int]) -> None:
        """Limit each rank's memory, so that an excessive request fails before ranks are killed."""
        most = self.most_data()
        if most is None:
            return
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended; the waiting process will report it
                _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
                bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.prlimit(pid, resource.RLIMIT_DATA, (bound, bound))

    def status(self) -> list[str]:
        """Return lines for `%ranks status`, or none if an unshared machine granted everything."""
        if not self.part.learners:
            return self.told
        gpu = " and ".join(f"GPU {gpu.name}" for gpu in self.gpus or []) or "no GPU"
        most = self.most_data()
        bound = f"; the data of each rank may grow to {most / 1e9:.1f} GB" if most else ""
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return [
            *self.told,
            f"This node is shared by {self.part.learners} learners. These ranks hold {gpu}, "
            f"{cores} and {self.memory / 1e9:.1f} GB{bound}.",
        ]

    def give_back(self) -> None:
        """Release the lease; a second call does nothing."""
        claim, self.claim = self.claim, None
        if claim is not None and os.getpid() == self._owner:
            with suppress(OSError):
                os.unlink(claim[0])
            os.close(claim[1])


def take(
    world: int,
    *,
    notebook: str = "",
    env: Mapping[str, str] | None = None,
    seen: Sequence[Gpu] | None = None,
    machine: Machine | None = None,
) -> Lease:
    """Return a lease for `world` ranks with environment `env`, on the visible GPUs `seen`."""
    env = os.environ if env is None else env
    seen = gpus.visible(env) if seen is None else seen
    machine = look() if machine is None else machine
    part, folder = share.part(machine, len(seen)), node_folder()
    try:
        with one_at_a_time(folder):
            everybody = claims.living(folder, machine)
            others = claims.others(everybody)
            granted, shared, in_the_way = _gpus(world, seen, part, everybody)
            lease = _lease(world, env, machine, part, others, granted if seen else None, granted)
            lease.told = _told(world, seen, min(world, part.gpus), granted, shared, in_the_way)
            keys = [gpu.key for gpu in granted] if seen else None
            held = {"gpus": keys, "shared": shared, "cores": lease.cores, "memory": lease.memory}
            lease.claim = claims.write(folder, notebook, **held)
            return lease
    except Unusable as trouble:
        lease = _lease(world, env, machine, part, [], None, seen)
        lease.told = [f"Leases are off, so others may compute where these ranks do: {trouble}."]
        return lease


def _lease(world, env, machine, part, others, given, used: Sequence[Gpu]) -> Lease:
    """Return a lease without a claim: `given` lists the GPUs that the ranks may see (None for all),
    and `used` the GPUs on which they compute."""
    memory = share.check_memory(world, part, machine, others)
    gpus.check_room(world, used)
    held_by_others, _ = claims.used(others, share.most_of_one(machine, part.learners))
    cores = max(world, min(part.cores, machine.cores - held_by_others))
    count = share.threads(world, cores, part.learners, env)
    variables = _variables(env, given, count, part.learners)
    cores = min(cores, world * count)
    return Lease(world, part, given, not used, cores, count, memory, variables)


def _gpus(world, seen, part, everybody) -> tuple[list[Gpu], bool, list[claims.Claim]]:
    """Return the GPUs that this notebook's other ranks hold, or free GPUs if it has no others."""
    mine = next((c for c in everybody if c.is_mine() and c.gpus is not None), None)
    if mine is not None:
        return [gpu for gpu in seen if gpu.key in mine.gpus], mine.shared, []
    may_share = os.environ.get("COURSE_SHARE_GPUS", "0") not in ("", "0")
    return gpus.grant(seen, min(world, part.gpus), claims.others(everybody), may_share)


def _variables(env, given: list[Gpu] | None, threads: int, learners: int) -> dict[str, str]:
    found = {}
    if learners or not env.get("OMP_NUM_THREADS"):
        found["OMP_NUM_THREADS"] = str(threads)
    if given is not None:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.name for gpu in given)
        if "CUDA_VISIBLE_DEVICES" not in env:  # the indices are the driver's
            found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return found


def _told(world: int, seen, wanted: int, granted: list[Gpu], shared: bool, in_the_way) -> list[str]:
    count, all_of = len(granted), len(seen)
    if not in_the_way or (count >= min(wanted, all_of) and not shared):
        return []
    by = f"held (by {claims.names(in_the_way)})"
    again = "`%ranks restart` asks again."
    if granted and not shared:
        free = f"{count} of {all_of} GPUs of this node {'is' if count == 1 else 'are'} free"
        it = "it" if count == 1 else "them"
        return [f"Only {free}, and the others are {by}, so {world} ranks share {it}. {again}"]
    held = f"All {all_of} GPUs of this node are" if all_of > 1 else "The only GPU of this node is"
    so = "compute on the CPU"
    if shared:
        so = f"share GPU {granted[0].name} with another notebook, as COURSE_SHARE_GPUS allows"
    return [f"{held} {by}, so these ranks {so}. {again}"]


def _let_go(reference: weakref.ref) -> None:
    """Close a forked child's copy of the claim, which still belongs to the parent."""
    lease = reference()
    if lease is not None and lease.claim is not None:
        os.close(lease.claim[1])
        lease.claim = None


def node_report(seen: Sequence[Gpu] | None = None, machine: Machine | None = None) -> dict:
    """Return GPUs, cores and memory with their holders as plain data for `course status --all`;
    `problem` states why leases are off."""
    seen = gpus.visible() if seen is None else seen
    machine = look() if machine is None else machine
    found, problem = claims.living_here(machine)
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


def _plain(claim: claims.Claim) -> dict:
    facts = asdict(claim)
    del facts["started"]
    return facts
