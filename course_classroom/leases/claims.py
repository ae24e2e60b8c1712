"""Claims: a file for each group of ranks, which lists their resources while they run.

A claim is valid while its file is locked, and the lock ends with its process. Other users' files
are untrusted, so a claim counts only if it parses and fits the machine.
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
_LARGEST = 2**63  # maximum of a number in a claim


@dataclass(frozen=True)
class Claim:
    """The resources of one group of ranks. `gpus` is None if the group requested no GPU."""

    pid: int
    started: float
    notebook: str
    gpus: list[str] | None
    shared: bool
    cores: int
    memory: int
    user: str = ""  # from the file's owner, never from its text

    def is_mine(self) -> bool:
        """Return True if this process holds the claim. Another user can forge pid and start time,
        but not the file's owner."""
        mine = self.user == _user(os.geteuid()) and self.pid == os.getpid()
        return mine and abs(self.started - _started()) < 1


def write(folder: Path, notebook: str, **held: object) -> tuple[Path, int]:
    """Write a claim of this process, and return its file and the open handle that keeps it valid.
    The notebook's folder is omitted, because other users need not know it."""
    facts = {"pid": os.getpid(), "started": _started(), "notebook": Path(notebook).name, **held}
    return node.new_locked(folder, _PREFIX, json.dumps(facts).encode())


def living_here(machine: Machine) -> tuple[list[Claim], str]:
    """Return all claims on this node, and a reason if they could not be read."""
    folder = node.node_folder()
    try:
        with node.one_at_a_time(folder, create=False) as there:
            return (living(folder, machine) if there else []), ""
    except node.Unusable as trouble:
        return [], str(trouble)


def living(folder: Path, machine: Machine) -> list[Claim]:
    """Return every claim of a live process that the machine can satisfy, and remove claims of ended
    processes if allowed. Cores count up to the machine's number."""
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
            continue  # gone meanwhile, removable only by its owner, or not a claim
    return found


def others(claims: Iterable[Claim]) -> list[Claim]:
    return [claim for claim in claims if not claim.is_mine()]


def used(claims: Iterable[Claim], most: tuple[int, int]) -> tuple[int, int]:
    """Return the total cores and bytes of the claims. Each process counts with its largest claim,
    up to `most`, because a notebook's ranks wait while its extra ranks or checks run."""
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
    """List the owners of the claims, as in `ana, bo`, and your own claims by notebook."""
    me = _user(os.getuid())
    each = (f"{c.user} in {c.notebook}" if c.user == me and c.notebook else c.user for c in claims)
    users = list(dict.fromkeys(each))
    more = [f"{len(users) - most} more"] if len(users) > most else []
    return ", ".join([*users[:most], *more])


def _parsed(text: bytes, owner: int) -> Claim:
    facts = json.loads(text)
    numbers = [facts[name] for name in ("pid", "started", "cores", "memory")]
    if not all(type(x) in (int, float) and 0 <= x <= _LARGEST for x in numbers):
        raise ValueError("a number beyond any machine")
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
