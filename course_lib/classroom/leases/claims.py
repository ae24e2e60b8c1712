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
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

import psutil

from course_lib.classroom.leases import folder as node
from course_lib.classroom.leases.machine import Machine

_PREFIX, _LONGEST = "claim-", 65_536
_LARGEST = 2**63  # of a number in a claim: what a machine counts with


@dataclass(frozen=True)
class Claim:
    """What one group of ranks holds. `gpus` is None where it never asked for any."""

    pid: int
    started: float
    notebook: str
    since: str
    gpus: list[str] | None
    shared: bool
    cores: int
    memory: int
    user: str = ""  # from the file's owner, never from its text

    def is_mine(self) -> bool:
        """Whether this very process holds it: extra ranks and checks beside a notebook's own.

        Pid and start are text, which another user can write as well; the file's owner is not.
        """
        mine = self.user == _user(os.geteuid()) and self.pid == os.getpid()
        return mine and abs(self.started - _started()) < 1


def new(notebook: str, *, gpus: list[str] | None, shared: bool, cores: int, memory: int) -> Claim:
    """A claim of this process, from now on."""
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    name = Path(notebook).name  # others need not know in which folder
    return Claim(os.getpid(), _started(), name, since, gpus, shared, cores, memory)


def write(folder: Path, claim: Claim) -> tuple[Path, int]:
    """Put the claim into the folder: its file, and the open handle that keeps it alive."""
    facts = asdict(claim)
    del facts["user"]
    return node.new_locked(folder, _PREFIX, json.dumps(facts).encode())


def living(folder: Path, machine: Machine) -> list[Claim]:
    """Every claim whose process lives and that the machine can hold; those of the dead are removed
    where we may.

    A lease is refused beyond the machine's memory, so a claim of more is no lease's. Its cores are
    bounded instead: how many there are depends on who asks.
    """
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
    """Cores and bytes that the claims hold together, of each process `most` at the most.

    Those of one process take turns, so the largest counts: a notebook's ranks wait while its extra
    ranks or its checks run.
    """
    cores: dict[tuple, int] = defaultdict(int)
    memory: dict[tuple, int] = defaultdict(int)
    for claim in claims:
        process = (claim.user, claim.pid, claim.started)
        cores[process] = max(cores[process], min(claim.cores, most[0]))
        memory[process] = max(memory[process], min(claim.memory, most[1]))
    return sum(cores.values()), sum(memory.values())


def holders(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    """For each GPU that is held, the claims on it."""
    found: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        for gpu in claim.gpus or []:
            found[gpu].append(claim)
    return found


def names(claims: Iterable[Claim], most: int = 6) -> str:
    """Who the claims belong to, each once: `ana, bo`; one's own are told apart by notebook."""
    me = _user(os.getuid())
    said = list(
        dict.fromkeys(
            f"{claim.user} in {claim.notebook}"
            if claim.user == me and claim.notebook
            else claim.user
            for claim in claims
        )
    )
    more = [f"{len(said) - most} more"] if len(said) > most else []
    return ", ".join([*said[:most], *more])


def _parsed(text: bytes, owner: int) -> Claim:
    facts = json.loads(text)
    gpus = facts["gpus"]
    if gpus is not None:
        if not isinstance(gpus, list):
            raise TypeError(f"{gpus!r} is not a list")
        gpus = [_clean(gpu) for gpu in gpus]
    return Claim(
        pid=int(_number(facts["pid"])),
        started=float(_number(facts["started"])),
        notebook=_clean(facts["notebook"]),
        since=_clean(facts["since"]),
        gpus=gpus,
        shared=facts["shared"] is True,
        cores=int(_number(facts["cores"])),
        memory=int(_number(facts["memory"])),
        user=_user(owner),
    )


def _number(value: object) -> int | float:
    """A stranger's number, fit to be counted with: not negative, not NaN and of bounded size."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    if not 0 <= value <= _LARGEST:
        raise ValueError("no number that a machine counts with")
    return value


def _clean(text: object) -> str:
    """A stranger's word, fit to be shown."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is not a text")
    return "".join(c if c.isprintable() else "?" for c in text[:100])


def _user(uid: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def _started() -> float:
    return psutil.Process().create_time()
