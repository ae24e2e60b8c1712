"""Hosts that train together: the same releases, the same call, similar clocks, one shared folder.

Differences are reported before the first step with the hosts' names. Later, a difference would
change the curve or block a rank. Lesson 08.
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

APART = 60.0  # maximum difference of clocks in seconds
TOKEN = ".~shared-{}"  # a file that shows whether hosts share the folder
SEEN = 10.0  # seconds until a file must be visible on other hosts


@dataclass(frozen=True)
class HostReport:
    """A rank's software, options, host and clock."""

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
    """Refuse ranks with different releases or options, and report clocks that differ. Every rank
    calls it. On a single host there is nothing to compare."""
    if me.local_world == me.world:
        return
    dist.barrier()  # so that all ranks read their clocks at about the same time
    reports: list = [None] * me.world
    dist.all_gather_object(reports, report_of(me, options))
    difference = first_difference(reports)
    if difference:
        raise Refused(difference)
    late = clocks(reports)
    if late and me.rank == 0:
        print(f"course train: {late}", file=sys.stderr, flush=True)


def first_difference(reports: list[HostReport]) -> str:
    """Describe the first difference between a rank and rank 0; empty if all are equal."""
    first = reports[0]
    for other in reports[1:]:
        where = f"rank 0 on {first.host} and rank {other.rank} on {other.host}"
        for name, version in first.releases.items():
            if other.releases.get(name) != version:
                return (
                    f"{where} have {name} {version} and {other.releases.get(name)}. Install the "
                    "same release on every host (`make setup` uses constraints.txt)"
                )
        for name, value in first.options.items():
            if other.options.get(name) != value:
                return (
                    f"{where} were started with --{name.rstrip('_').replace('_', '-')} {value} and "
                    f"{other.options.get(name)}. Run the same command on every host"
                )
    return ""


def clocks(reports: list[HostReport]) -> str:
    """Describe the clock that differs most from rank 0's; empty if all clocks agree."""
    first = reports[0]
    off = {r.host: r.clock - first.clock for r in reports if abs(r.clock - first.clock) > APART}
    if not off:
        return ""
    host, seconds = max(off.items(), key=lambda item: abs(item[1]))
    way = "ahead of" if seconds > 0 else "behind"
    return (
        f"the clock of {host} is {abs(seconds):.0f} s {way} that of {first.host}, so times in "
        "their logs cannot be compared; set both clocks by NTP"
    )


def check_shared(folder: Path, me: ranks.Me) -> None:
    """Refuse a folder that hosts do not share, since all ranks write a checkpoint's files into it.
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
            f"--out {folder} is a different folder on {', '.join(hosts)} than on rank 0's host, "
            "but every rank writes its part of a checkpoint there. Name a folder that all hosts "
            "share (NFS, Lustre) under the same path"
        )
