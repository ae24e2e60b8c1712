"""Two hosts, each with the program imported, for all tests of this folder."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from course_lib.nodes.two_hosts import Host, NoHosts, TwoHosts
from tests.pool import ROOT

LIMIT = 90.0  # seconds for whatever ends by itself
STARTER = [sys.executable, "-m", "tests.nodes.starter"]


@dataclass
class Rank:
    """A rank on one of the hosts."""

    starter: Starter
    pid: int
    out: Path
    err: Path
    code: int | None = None

    def ended(self) -> int | None:
        if self.code is None:
            self.code = self.starter.ask({"wait": self.pid})
        return self.code

    def wait(self) -> int:
        limit = time.monotonic() + LIMIT
        while self.ended() is None:
            assert time.monotonic() < limit, f"still there: {self.said}"
            time.sleep(0.05)
        return self.code

    @property
    def said(self) -> str:
        """What the program complained about; torch's own code logs beside it what sockets do."""
        text = self.err.read_text()
        assert "Traceback" not in text, text
        return "\n".join(x for x in text.splitlines() if x.startswith("course train:"))


class Starter:
    """The process on a host that forks ranks."""

    def __init__(self, hosts: TwoHosts, host: Host, folder: Path):
        kept = {k: v for k, v in os.environ.items() if k != "GLOO_SOCKET_IFNAME"}
        env = {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.host, self.folder, self.numbers = host, folder, itertools.count()
        self.process = hosts.start(
            host, STARTER, env=env, cwd=ROOT, stdin=subprocess.PIPE, stderr=None
        )
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, order: dict) -> object:
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, rank: int, argv: list[str], port: int, first: str = "", **more: str) -> Rank:
        env = {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "host-a", "MASTER_PORT": str(port), **more,
        }  # fmt: skip
        stem = self.folder / f"{self.host.name}-{next(self.numbers)}"
        out, err = stem.with_suffix(".out"), stem.with_suffix(".err")
        order = {"env": env, "argv": argv, "first": first, "out": str(out), "err": str(err)}
        return Rank(self, self.ask(order), out, err)


class Cluster:
    """Both hosts, and a port that no run before has had."""

    def __init__(self, hosts: TwoHosts, folder: Path):
        self.hosts = hosts
        self.a, self.b = (Starter(hosts, host, folder) for host in (hosts.a, hosts.b))
        self.ports = itertools.count(29500)

    def both(self, argv: list[str], firsts: tuple[str, str] = ("", "")) -> list[Rank]:
        port = next(self.ports)
        return [
            starter.start(rank, argv, port, first)
            for rank, (starter, first) in enumerate(zip((self.a, self.b), firsts, strict=True))
        ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with TwoHosts() as hosts:
            yield Cluster(hosts, tmp_path_factory.mktemp("hosts"))
    except NoHosts as reason:
        pytest.skip(str(reason))
