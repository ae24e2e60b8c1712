"""One lease: taken before ranks start, told to the learner, and given back when they have ended.

Looking and claiming happen under one mutex, so that two notebooks that start together never get
the same. A node whose folder cannot be used costs the leases, never the lesson.
"""

from __future__ import annotations

import functools
import os
import resource
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.classroom.leases import claims, gpus, share
from course_lib.classroom.leases.folder import Unusable, node_folder, one_at_a_time
from course_lib.classroom.leases.gpus import Gpu
from course_lib.classroom.leases.machine import Machine, look


@dataclass(eq=False)
class Lease:
    """What ranks hold. `gpus` is None where there is none to be had: then nothing is hidden."""

    world: int
    part: share.Part
    gpus: list[Gpu] | None
    on_cpu: bool
    cores: int
    threads: int  # for each rank
    memory: int
    variables: dict[str, str]  # for each rank's environment
    told: list[str] = field(default_factory=list)  # for the learner: what was refused, and why
    locks: list[int] = field(default_factory=list)
    claim: tuple[Path, int] | None = None

    def __post_init__(self) -> None:
        self._owner = os.getpid()
        # A process that the notebook forks must not keep the locks when the notebook is gone.
        os.register_at_fork(after_in_child=functools.partial(_let_go, weakref.ref(self)))

    def most_data(self) -> int | None:
        """Bytes of data for each rank, where ranks on the CPU share a node with other learners."""
        if not self.part.learners or not self.on_cpu or not hasattr(resource, "prlimit"):
            return None
        return max(self.memory // self.world, share.LEAST_DATA)

    def bound_memory(self, pids: Iterable[int]) -> None:
        """Make a rank that asks for too much fail by itself, before its neighbours are killed."""
        most = self.most_data()
        if most is None:
            return
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended; whoever waits for it says so
                _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
                bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.prlimit(pid, resource.RLIMIT_DATA, (bound, bound))

    def status(self) -> list[str]:
        """Lines for `%ranks status`; none where all was granted on a machine of one's own."""
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
        """Let others have it. Safe to call twice."""
        if os.getpid() != self._owner:
            return
        # Whoever finds the claim gone has to find the locks free.
        gpus.release(self.locks)
        claim, self.claim = self.claim, None
        if claim is not None:
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
    """A lease for `world` ranks whose environment is `env`, on the GPUs `seen` of a machine."""
    env = os.environ if env is None else env
    seen = gpus.visible(env) if seen is None else seen
    machine = look() if machine is None else machine
    part = share.part(machine, len(seen))
    folder = node_folder()
    try:
        with one_at_a_time(folder):
            return _claim(world, notebook, env, seen, machine, part, folder)
    except Unusable as trouble:
        cores = max(world, part.cores)
        memory = share.check_memory(world, part, machine, [])
        gpus.check_room(world, seen)
        count = share.threads(world, cores, part.learners, env)
        told = [f"Leases are off, so others may compute where these ranks do: {trouble}."]
        names = _variables(env, None, count, part.learners)
        return Lease(world, part, None, not seen, cores, count, memory, names, told)


def _claim(world, notebook, env, seen, machine, part, folder) -> Lease:
    everybody = claims.living(folder, machine)
    others = claims.others(everybody)
    memory = share.check_memory(world, part, machine, others)
    held_by_others, _ = claims.used(others, share.most_of_one(machine, part.learners))
    cores = max(world, min(part.cores, machine.cores - held_by_others))
    count = share.threads(world, cores, part.learners, env)
    got = _gpus(world, seen, part, folder, everybody)
    given = got.gpus if seen else None
    try:
        gpus.check_room(world, got.gpus)
        held = claims.new(
            notebook,
            gpus=[gpu.key for gpu in got.gpus] if seen else None,
            shared=got.shared,
            cores=min(cores, world * count),
            memory=memory,
        )
        return Lease(
            world,
            part,
            given,
            not got.gpus,
            held.cores,
            count,
            memory,
            _variables(env, given, count, part.learners),
            told=_told(world, len(seen), min(world, part.gpus), got),
            locks=got.locks,
            claim=claims.write(folder, held),
        )
    except BaseException:
        gpus.release(got.locks)
        raise


def _gpus(world, seen, part, folder, everybody) -> gpus.Grant:
    """The notebook's own GPUs where other ranks of it hold some already, else what is free."""
    mine = next((c for c in everybody if c.is_mine() and c.gpus is not None), None)
    if mine is not None:
        return gpus.Grant([gpu for gpu in seen if gpu.key in mine.gpus], shared=mine.shared)
    may_share = os.environ.get("COURSE_SHARE_GPUS", "0") not in ("", "0")
    wanted = min(world, part.gpus)
    return gpus.grant(folder, seen, wanted, claims.others(everybody), may_share)


def _variables(env, given: list[Gpu] | None, threads: int, learners: int) -> dict[str, str]:
    found = {}
    if learners or not env.get("OMP_NUM_THREADS"):
        found["OMP_NUM_THREADS"] = str(threads)
    if given is not None:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.name for gpu in given)
        if "CUDA_VISIBLE_DEVICES" not in env:  # the indices are the driver's own
            found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return found


def _told(world: int, seen: int, wanted: int, got: gpus.Grant) -> list[str]:
    """What was refused and why, in a line; nothing where nothing was."""
    wanted = min(wanted, seen)
    granted = len(got.gpus) >= wanted and not got.shared
    if granted or not (got.in_the_way or got.unclaimed):
        return []
    who = [claims.names(got.in_the_way)] if got.in_the_way else []
    who += ["another program"] if got.unclaimed else []
    by = f"held (by {' and '.join(who)})"
    all_of = f"All {seen} GPUs of this node are" if seen > 1 else "The only GPU of this node is"
    if not got.gpus:
        return [f"{all_of} {by}, so these ranks compute on the CPU. `%ranks restart` asks again."]
    if got.shared:
        return [
            f"{all_of} {by}, so these ranks share GPU {got.gpus[0].name} with another notebook, "
            "as COURSE_SHARE_GPUS allows. `%ranks restart` asks again."
        ]
    free = f"{len(got.gpus)} of {seen} GPUs of this node {'is' if len(got.gpus) == 1 else 'are'}"
    it = "it" if len(got.gpus) == 1 else "them"
    return [
        f"Only {free} free and the others are {by}, so {world} ranks share {it}. "
        "`%ranks restart` asks again."
    ]


def _let_go(reference: weakref.ref) -> None:
    """In a forked child: close the copies of the locks, which are still the parent's."""
    lease = reference()
    if lease is not None:
        gpus.release(lease.locks)
        claim, lease.claim = lease.claim, None
        if claim is not None:
            os.close(claim[1])
