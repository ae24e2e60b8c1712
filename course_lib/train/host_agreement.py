"""Hosts that train together: the same releases, the same call, clocks that agree, one folder.

What differs is said before the first step, with the names of the hosts: later, a difference would
be another curve, or a rank that waits. Lesson 08.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

import course_lib
from course_lib import ranks
from course_lib.train.options import Options, Refused

APART = 60.0  # seconds that clocks may differ by
TOKEN = ".~shared-{}"  # a file by which hosts see that a folder is one
SEEN = 10.0  # seconds that a file may take to be seen on another host


@dataclass(frozen=True)
class HostReport:
    """What a rank runs, and where."""

    rank: int
    host: str
    releases: dict[str, str]
    options: dict[str, str]
    clock: float


def report_of(me: ranks.Me, options: Options) -> HostReport:
    releases = {
        "course_lib": course_lib.__version__,
        "torch": torch.__version__.partition("+")[0],
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "byte order": sys.byteorder,
    }
    told = {name: str(value) for name, value in vars(options).items() if name != "typed"}
    return HostReport(me.rank, socket.gethostname(), releases, told, time.time())


def check_alike(me: ranks.Me, options: Options) -> None:
    """Refuse ranks that run another release, or were called otherwise; say whose clock is off.
    Every rank calls it. On one host there is nothing to compare."""
    if me.local_world == me.world:
        return
    dist.barrier()  # so that all look at their clocks at about one time
    reports: list = [None] * me.world
    dist.all_gather_object(reports, report_of(me, options))
    difference = first_difference(reports)
    if difference:
        raise Refused(difference)
    late = clocks(reports)
    if late and me.rank == 0:
        print(f"course train: {late}", file=sys.stderr, flush=True)


def first_difference(reports: list[HostReport]) -> str:
    """The first thing in which a rank is not as rank 0; nothing where all are alike."""
    first = reports[0]
    for other in reports[1:]:
        where = f"rank 0 on {first.host} and rank {other.rank} on {other.host}"
        for name, version in first.releases.items():
            if other.releases.get(name) != version:
                return (
                    f"{where} have {name} {version} and {other.releases.get(name)}: install the "
                    "same on every host (`make setup` takes what constraints.txt names)"
                )
        for name, value in first.options.items():
            if other.options.get(name) != value:
                return (
                    f"{where} were started with --{name.rstrip('_').replace('_', '-')} {value} and "
                    f"{other.options.get(name)}: run the same command on every host"
                )
    return ""


def clocks(reports: list[HostReport]) -> str:
    """Which host's clock is far from rank 0's; nothing where all agree."""
    first = reports[0]
    off = {r.host: r.clock - first.clock for r in reports if abs(r.clock - first.clock) > APART}
    if not off:
        return ""
    host, seconds = max(off.items(), key=lambda item: abs(item[1]))
    way = "ahead of" if seconds > 0 else "behind"
    return (
        f"the clock of {host} is {abs(seconds):.0f} s {way} that of {first.host}: times in their "
        "logs cannot be compared; let NTP set both"
    )


def check_shared(folder: Path, me: ranks.Me) -> None:
    """Refuse a folder that is not the same one on every host, since all write a checkpoint's files.
    Every rank calls it."""
    token = [f"{socket.gethostname()}-{os.getpid()}" if me.rank == 0 else ""]
    dist.broadcast_object_list(token, src=0)
    path = folder / TOKEN.format(token[0])
    try:
        if me.rank == 0:
            path.touch()
        dist.barrier()
        limit = time.monotonic() + SEEN
        while not path.exists() and time.monotonic() < limit:
            time.sleep(0.05)
        blind: list = [None] * me.world
        dist.all_gather_object(blind, "" if path.exists() else socket.gethostname())
    finally:
        if me.rank == 0:
            path.unlink(missing_ok=True)
    hosts = sorted({host for host in blind if host})
    if hosts:
        raise Refused(
            f"--out {folder} is another folder on {', '.join(hosts)} than on rank 0's host, and "
            "every rank writes its part of a checkpoint there: name a folder that all hosts share "
            "(NFS, Lustre), by the same path"
        )
