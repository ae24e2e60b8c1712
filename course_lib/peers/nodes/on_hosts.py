"""Runs of `course train` on two hosts: each host imports the program once and forks its ranks.

A run is started as SLURM or a person would start it on each host, with RANK and MASTER_ADDR in the
environment. Each rank's output and exit code are kept for Appendix C. Lesson 15.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_lib.peers.nodes.two_hosts import Host, TwoHosts

LIMIT = 90.0  # seconds for processes that end by themselves
STARTER = [sys.executable, "-m", "course_lib.peers.nodes.starter"]
ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Rank:
    """A rank on one of the hosts."""

    starter: Starter
    pid: int
    out: Path
    err: Path
    code: int | None = None

    def ended(self) -> int | None:
        """Return the exit code, or None while the rank runs."""
        if self.code is None:
            self.code = self.starter.ask({"wait": self.pid})
        return self.code

    def wait(self) -> int:
        """Wait at most `LIMIT` seconds for the exit code."""
        limit = time.monotonic() + LIMIT
        while self.ended() is None:
            if time.monotonic() > limit:
                raise TimeoutError(
                    f"a rank on {self.starter.host.name} was still running after {LIMIT:g} s with "
                    f"the output {self.err.read_text()[-500:]!r}; it ends with its hosts"
                )
            time.sleep(0.05)
        return self.code

    @property
    def said(self) -> str:
        """The program's own lines, without torch's log about its sockets."""
        lines = self.err.read_text().splitlines()
        return "\n".join(line for line in lines if line.startswith("course train:"))


class Starter:
    """The process on a host that forks ranks."""

    def __init__(self, hosts: TwoHosts, host: Host, folder: Path):
        kept = {k: v for k, v in os.environ.items() if k != "GLOO_SOCKET_IFNAME"}
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.host, self.folder, self.numbers = host, folder, itertools.count()
        env = {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stderr": None}
        self.process = hosts.start(host, STARTER, env=env, cwd=ROOT, **pipes)

    def ready(self) -> None:
        """Wait until the program is imported."""
        line = self.process.stdout.readline()
        if line != "ready\n":
            raise RuntimeError(f"{self.host.name} could not import course_lib.train: {line!r}")

    def ask(self, order: Mapping) -> object:
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(
        self, rank: int, argv: Sequence[str], port: int, first: str = "", **more: str
    ) -> Rank:
        """Fork a rank, which runs `first` (Python code) first; `more` are additional variables."""
        env = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        env |= {"MASTER_ADDR": "host-a", "MASTER_PORT": str(port), **more}
        stem = self.folder / f"{self.host.name}-{next(self.numbers)}"
        out, err = stem.with_suffix(".out"), stem.with_suffix(".err")
        order = {"env": env, "argv": [*argv], "first": first, "out": str(out), "err": str(err)}
        return Rank(self, self.ask(order), out, err)


class OnHosts:
    """Two hosts with a starter on each, and a new port for each run."""

    def __init__(self, hosts: TwoHosts, folder: Path):
        self.hosts = hosts
        self.a, self.b = (Starter(hosts, host, folder) for host in (hosts.a, hosts.b))
        for starter in (self.a, self.b):  # both import concurrently
            starter.ready()
        self.ports = itertools.count(29500)

    def both(self, argv: Sequence[str], firsts: Sequence[str] = ("", "")) -> list[Rank]:
        """Start a run of two ranks, rank 0 on host-a and rank 1 on host-b."""
        port = next(self.ports)
        return [self.a.start(0, argv, port, firsts[0]), self.b.start(1, argv, port, firsts[1])]

    def on_one(self, argv: Sequence[str]) -> list[Rank]:
        """Start the same run with both ranks on host-a."""
        port, both = next(self.ports), {"LOCAL_WORLD_SIZE": "2"}
        return [self.a.start(rank, argv, port, LOCAL_RANK=str(rank), **both) for rank in range(2)]
