"""Two hosts on one machine: kernel namespaces, each with its own network, and a link.

Like two machines, the hosts have different names and addresses, and a link with a speed limit that
can be cut. No process survives the context, even if its owner is killed. Lesson 15.
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
STARTING = 10.0  # seconds for a namespace to start
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
    """The error if this machine cannot run a second host; the message gives the reason."""


@dataclass(frozen=True)
class Host:
    """A name and an address, and the process that keeps its namespaces alive."""

    name: str
    address: str
    link: str
    keeper: int


class TwoHosts:
    """Two linked hosts that share a file system, a and b, as in `with TwoHosts() as hosts`.

    `rate` is the link's speed in each direction, as `tc` writes it ("200mbit"). NoHosts is raised
    if the system does not allow namespaces to this user.
    """

    def __init__(self, rate: str | None = None):
        self.rate = rate
        self.started: list[subprocess.Popen] = []
        self.keepers: list[subprocess.Popen] = []

    def __enter__(self) -> TwoHosts:
        missing = [name for name in NEEDED if shutil.which(name) is None]
        if not sys.platform.startswith("linux") or missing:
            raise NoHosts(
                f"two hosts on one machine are Linux namespaces, which need {', '.join(NEEDED)}"
                + (f" ({', '.join(missing)} is not installed)" if missing else "")
            )
        self.folder = Path(tempfile.mkdtemp(prefix="course-hosts-"))
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for process in reversed(self.keepers):  # the kernel kills all inside the first
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
        """Run a command on a host, at most until the hosts end. `how` are options of Popen."""
        # A process that enters a namespace starts in its root folder.
        line = ["sh", "-c", 'cd "$0" && exec "$@"', str(Path(cwd or Path.cwd()).absolute())]
        streams = {"stdin": subprocess.DEVNULL, "stdout": PIPE, "stderr": PIPE}
        words = [*_enter(host.keeper), *line, *command]
        process = subprocess.Popen(words, text=True, **(streams | how))
        self.started.append(process)
        return process

    def cut(self) -> None:
        """Cut the link; data sent over it is lost without an error."""
        self._run(self.a, "ip", "link", "set", self.a.link, "down")

    def mend(self) -> None:
        self._run(self.a, "ip", "link", "set", self.a.link, "up")

    def private(self, host: Host, folder: Path | str) -> None:
        """Make this folder private to this host. It starts empty, and the other one
        cannot see it."""
        self._run(host, "mount", "-t", "tmpfs", "none", str(folder))

    def _make(self) -> None:
        names = self.folder / "hosts"
        names.write_text(HOSTS)
        keep = ["sh", "-c", "exec cat"]  # until its input ends, which happens with this process
        first = ["unshare", "-U", "-r", "-n", "-m", "-u", "-p", "-f", "--mount-proc"]
        a = self._keeper([*first, "--kill-child", *keep])
        self._run(a, "sh", "-c", INSIDE, "sh", str(names), "host-a")
        b = self._keeper([*_enter(a), "unshare", "-n", "-m", "-u", *keep])
        self._run(b, "sh", "-c", INSIDE, "sh", str(names), "host-b")
        self.a = Host("host-a", "10.77.0.1", "to-b", a)
        self.b = Host("host-b", "10.77.0.2", "to-a", b)
        # The peer's namespace is addressed by its process number inside.
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
        """Start a process that keeps namespaces alive; return the id of the process inside."""
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
                raise NoHosts(f"this system forbids a second host: {process.stderr.read().strip()}")
            time.sleep(0.01)
        raise NoHosts(f"{' '.join(command)} was not ready after {STARTING:g} s")

    def _run(self, host: Host | int, *command: str) -> None:
        keeper = host if isinstance(host, int) else host.keeper
        done = subprocess.run(
            [*_enter(keeper), *command], capture_output=True, text=True, timeout=STARTING
        )
        if done.returncode:
            raise NoHosts(
                f"this system forbids a second host ({' '.join(command)}: {done.stderr.strip()})"
            )


def _enter(keeper: int) -> list[str]:
    return ["nsenter", "-t", str(keeper), "-U", "-n", "-m", "-u", "-p", "--preserve-credentials"]


def _below(pid: int) -> list[int]:
    """List the descendants of a process."""
    own = _proc(pid, f"task/{pid}/children").split()
    return [found for child in map(int, own) for found in (child, *_below(child))]


def _proc(pid: int, name: str) -> str:
    """Read the kernel's information about a process; empty once the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text().strip()
    except OSError:
        return ""
