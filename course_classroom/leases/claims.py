"""Claims: one file for each notebook's ranks, which says what they hold for as long as they live.

A claim lives while its file is locked; the lock goes with the process that wrote it, and what is
left is nobody's. Others' files are strangers' text: what does not parse does not count, and neither
does a claim of more than the machine has.
"""

from __future__ import annotations

import json
import os
import pwd
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from course_classroom.leases import folder as node
from course_classroom.leases.machine import Machine

_PREFIX, _LONGEST = "claim-", 65_536
_LARGEST = 2**63  # of a number in a claim: what a machine counts with


@dataclass(frozen=True)
class Claim:
    """What one group of ranks holds. `gpus` is None where it never asked for any."""

    pid: int
    started: float
    notebook: str
    gpus: list[str] | None
    shared: bool
    cores: int
    memory: int
    user: str = ""  # from the file's owner, never from its text

    def is_mine(self) -> bool:
        """Whether this very process holds it. Pid and start are text, which another user can write
        as well; the file's owner is not."""
        mine = self.user == _user(os.geteuid()) and self.pid == os.getpid()
        return mine and abs(self.started - _started()) < 1


def write(folder: Path, notebook: str, **held: object) -> tuple[Path, int]:
    """Put a claim of this process into the folder: its file, and the open handle that keeps it
    alive. Others need not know in which folder the notebook is."""
    facts = {"pid": os.getpid(), "started": _started(), "notebook": Path(notebook).name, **held}
    return node.new_locked(folder, _PREFIX, json.dumps(facts).encode())


def living_here(machine: Machine) -> tuple[list[Claim], str]:
    """All claims on this node, and what kept us from reading them, if anything did."""
    folder = node.node_folder()
    try:
        with node.one_at_a_time(folder, create=False) as there:
            return (living(folder, machine) if there else []), ""
    except node.Unusable as trouble:
        return [], str(trouble)


def living(folder: Path, machine: Machine) -> list[Claim]:
    """Every claim whose process lives and that the machine can hold; those of the dead are removed
    where we may. Of cores it counts for as many as there are."""
    found = []
    for path in sorted(folder.glob(f"{_PREFIX}*")):
        try:
            held = node.read_locked(path, _LONGEST)
            if held is None:
                os.unlink(path)
                continue
            claim = _parsed(*held)
            if claim.memory <= machine.memory:
                found.append(replace(claim, cores=min(claim.cores, machine.cores)))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue  # gone meanwhile, another user's to remove, or not a claim
    return found


def others(claims: Iterable[Claim]) -> list[Claim]:
    return [claim for claim in claims if not claim.is_mine()]


def used(claims: Iterable[Claim], most: tuple[int, int]) -> tuple[int, int]:
    """Cores and bytes that the claims hold together, of each process `most` at the most, and its
    largest claim: a notebook's ranks wait while its extra ranks or its checks run."""
    cores: dict[tuple, int] = defaultdict(int)
    memory: dict[tuple, int] = defaultdict(int)
    for claim in claims:
        process = (claim.user, claim.pid, claim.started)
        cores[process] = max(cores[process], min(claim.cores, most[0]))
        memory[process] = max(memory[process], min(claim.memory, most[1]))
    return sum(cores.values()), sum(memory.values())


def holders(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    found: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        for gpu in claim.gpus or []:
            found[gpu].append(claim)
    return found


def names(claims: Iterable[Claim], most: int = 6) -> str:
    """Who the claims belong to, each once: `ana, bo`; one's own are told apart by notebook."""
    me = _user(os.getuid())
    each = (f"{c.user} in {c.notebook}" if c.user == me and c.notebook else c.user for c in claims)
    users = list(dict.fromkeys(each))
    more = [f"{len(users) - most} more"] if len(users) > most else []
    return ", ".join([*users[:most], *more])


def _parsed(text: bytes, owner: int) -> Claim:
    facts = json.loads(text)
    numbers = [facts[name] for name in ("pid", "started", "cores", "memory")]
    if not all(type(x) in (int, float) and 0 <= x <= _LARGEST for x in numbers):
        raise ValueError("a number that no machine counts with")
    if not isinstance(facts["gpus"], (list, type(None))):
        raise TypeError("gpus is not a list")
    gpus = facts["gpus"] and [_clean(gpu) for gpu in facts["gpus"]]
    pid, started, cores, memory = numbers
    notebook, shared = _clean(facts["notebook"]), facts["shared"] is True
    return Claim(
        int(pid), float(started), notebook, gpus, shared, int(cores), int(memory), _user(owner)
    )


def _clean(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is not a text")
    return "".join(c if c.isprintable() else "?" for c in text[:100])


def _user(uid: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def _started() -> float:
    return psutil.Process().create_time()
