"""Two hosts on one machine: namespaces of the kernel, each with its network, and a link.

A launcher runs on each as it does on two machines: other names, other addresses, a wire that has a
speed and can be cut. Nothing outlives the context, even where its process is killed. Lesson 15.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

NEEDED = ("unshare", "nsenter", "ip", "mount", "hostname")
STARTING = 10.0  # seconds for a namespace to be there
HOSTS = """127.0.0.1 localhost
10.77.0.1 host-a
10.77.0.2 host-b
"""
INSIDE = """set -e
mount --bind "$1" /etc/hosts
hostname "$2"
ip link set lo up
"""


class NoHosts(RuntimeError):
    """There can be no second host on this machine; the reason in words."""


@dataclass(frozen=True)
class Host:
    """A name and an address, and the process that keeps its namespaces alive."""

    name: str
    address: str
    link: str
    keeper: int


class TwoHosts:
    """`with TwoHosts() as hosts`: hosts.a and hosts.b, of one file system, with a link between.

    `rate` is the link's, as `tc` writes it ("200mbit"), each way. Raises NoHosts where the system
    does not allow namespaces to this user.
    """

    def __init__(self, rate: str | None = None):
        self.rate = rate
        self.started: list[subprocess.Popen] = []
        self.keepers: list[subprocess.Popen] = []

    def __enter__(self) -> TwoHosts:
        missing = [name for name in NEEDED if shutil.which(name) is None]
        if not sys.platform.startswith("linux") or missing:
            raise NoHosts(
                f"two hosts on one machine are namespaces of Linux, made with {', '.join(NEEDED)}"
                + (f"; {', '.join(missing)} is not installed" if missing else "")
            )
        self.folder = Path(tempfile.mkdtemp(prefix="course-hosts-"))
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for process in reversed(self.keepers):  # with the first, all inside is killed by the kernel
            process.stdin.close()
        for process in [*self.keepers, *self.started]:
            try:
                process.wait(STARTING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(
        self, host: Host, command: Sequence[str], *, cwd: str | Path | None = None, **how: object
    ) -> subprocess.Popen:
        """A command on one of the hosts; it ends with the hosts at the latest. `how` is Popen's."""
        # A process that enters a namespace starts in its root folder.
        line = ["sh", "-c", 'cd "$0" && exec "$@"', str(Path(cwd or Path.cwd()).absolute())]
        streams = {"stdin": subprocess.DEVNULL, "stdout": PIPE, "stderr": PIPE}
        words = [*_enter(host.keeper), *line, *command]
        process = subprocess.Popen(words, text=True, **(streams | how))
        self.started.append(process)
        return process

    def cut(self) -> None:
        """Take the wire away: what is sent is lost, and nobody is told."""
        self._run(self.a, "ip", "link", "set", self.a.link, "down")

    def mend(self) -> None:
        self._run(self.a, "ip", "link", "set", self.a.link, "up")

    def private(self, host: Host, folder: Path | str) -> None:
        """From now on this folder is the host's own: empty, and seen by no other."""
        self._run(host, "mount", "-t", "tmpfs", "none", str(folder))

    def _make(self) -> None:
        names = self.folder / "hosts"
        names.write_text(HOSTS)
        keep = ["sh", "-c", "exec cat"]  # until its input ends, which it does with this process
        first = ["unshare", "-U", "-r", "-n", "-m", "-u", "-p", "-f", "--mount-proc"]
        a = self._keeper([*first, "--kill-child", *keep])
        self._run(a, "sh", "-c", INSIDE, "sh", str(names), "host-a")
        b = self._keeper([*_enter(a), "unshare", "-n", "-m", "-u", *keep])
        self._run(b, "sh", "-c", INSIDE, "sh", str(names), "host-b")
        self.a = Host("host-a", "10.77.0.1", "to-b", a)
        self.b = Host("host-b", "10.77.0.2", "to-a", b)
        # The peer's namespace goes by the number that its process has inside.
        status = Path(f"/proc/{b}/status").read_text()
        inside = status.split("NSpid:")[1].splitlines()[0].split()[-1]
        ends = ["to-b", "type", "veth", "peer", "name", "to-a"]
        self._run(self.a, "ip", "link", "add", *ends, "netns", inside)
        for host in (self.a, self.b):
            self._run(host, "ip", "address", "add", f"{host.address}/24", "dev", host.link)
            self._run(host, "ip", "link", "set", host.link, "up")
            if self.rate is not None:
                bound = ["rate", self.rate, "burst", "256kb", "latency", "100ms"]
                self._run(host, "tc", "qdisc", "add", "dev", host.link, "root", "tbf", *bound)

    def _keeper(self, command: list[str]) -> int:
        """Start what keeps namespaces alive; the number of the process that is inside."""
        process = subprocess.Popen(
            command, stdin=PIPE, stdout=subprocess.DEVNULL, stderr=PIPE, text=True
        )
        self.keepers.append(process)
        limit = time.monotonic() + STARTING
        while time.monotonic() < limit:
            found = [
                pid for pid in (process.pid, *_below(process.pid)) if _proc(pid, "comm") == "cat"
            ]
            if found:
                return found[0]
            if process.poll() is not None:
                raise NoHosts(f"this system allows no second host: {process.stderr.read().strip()}")
            time.sleep(0.01)
        raise NoHosts(f"{' '.join(command)} was not ready after {STARTING:g} s")

    def _run(self, host: Host | int, *command: str) -> None:
        keeper = host if isinstance(host, int) else host.keeper
        done = subprocess.run(
            [*_enter(keeper), *command], capture_output=True, text=True, timeout=STARTING
        )
        if done.returncode:
            raise NoHosts(
                f"this system allows no second host: {' '.join(command)}: {done.stderr.strip()}"
            )


def _enter(keeper: int) -> list[str]:
    return ["nsenter", "-t", str(keeper), "-U", "-n", "-m", "-u", "-p", "--preserve-credentials"]


def _below(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    own = _proc(pid, f"task/{pid}/children").split()
    return [found for child in map(int, own) for found in (child, *_below(child))]


def _proc(pid: int, name: str) -> str:
    """What the kernel says of a process; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text().strip()
    except OSError:
        return ""
