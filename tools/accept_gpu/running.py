"""A command that runs to its end or its time limit, with all processes that it starts.

The processes inherit a mark in their environment and are found by it in /proc, since ranks start
their own sessions. Without /proc, only the process group is ended. No lesson derives it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE = 8.0  # seconds for an interrupted command to end its ranks
LEAST = 8.0  # minimum seconds to start a command
TAIL = 40  # lines of a failure that are kept in the verdict
MARK = "COURSE_ACCEPT_MARK"
HOUSE = str(Path(__file__).resolve().parents[2])  # ranks and kernels run in other folders


@dataclass(frozen=True)
class Ended:
    """The end of a command: its exit code (None at the time limit), seconds, and output files."""

    code: int | None
    seconds: float
    out: Path | None = None
    err: Path | None = None
    left_out: str = ""  # if the total time ended before its own

    def lines(self) -> list[str]:
        """Return all output lines, standard error last."""
        files = [file for file in (self.out, self.err) if file is not None]
        return [line for file in files for line in file.read_text(errors="replace").splitlines()]

    def how(self) -> str:
        """Describe the end of a command without a result, with its last lines."""
        if self.left_out:
            return self.left_out
        how = f"unfinished after {self.seconds:.0f} s"
        how = how if self.code is None else f"ended with {self.code}"
        return ": ".join([how, *filter(None, [" ".join(self.lines()[-3:])])])


@dataclass(frozen=True)
class Place:
    """The folder in which a stage runs, its folder for files, and the receiver of its parts."""

    root: Path
    scratch: Path
    records: Path | None = None  # a line per test; in scratch by default
    keep: Callable[[str, dict[str, Any]], None] = lambda name, found: None
    stop: threading.Event = field(default_factory=threading.Event)

    def python(self, limit: float, *arguments: str, **variables: str) -> Ended:
        command = [sys.executable, *arguments]
        path = os.pathsep.join(filter(None, [HOUSE, os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, **variables}
        return bounded(command, limit, self.root, self.scratch, env, self.stop)

    def within(self, until: float, each: float, *arguments: str, **variables: str) -> Ended:
        """Run at most `each` seconds, and not beyond `until`, a time of the monotonic clock."""
        left = until - time.monotonic()
        if left < LEAST:
            return Ended(None, 0.0, left_out="not started, no time was left")
        ended = self.python(min(left, each), *arguments, **variables)
        if ended.code is None and left < each:
            words = f"ended after {ended.seconds:.0f} s, because no time was left"
            return Ended(None, ended.seconds, ended.out, ended.err, words)
        return ended

    def together(
        self, limit: float, each: float, jobs: Mapping[str, list[str]], at_once: int = 1
    ) -> Iterator[tuple[str, Ended]]:
        """Run named commands, several at once, all within `limit` seconds; yield as they end."""
        until = time.monotonic() + limit
        with ThreadPoolExecutor(at_once) as threads:
            names = {
                threads.submit(self.within, until, each, *words): name
                for name, words in jobs.items()
            }
            for done in as_completed(names):
                yield names[done], done.result()


def grouped(left_out: Mapping[str, str]) -> list[str]:
    """Group names that have the same text."""
    words = dict.fromkeys(left_out.values())
    return [f"{', '.join(n for n in left_out if left_out[n] == one)}: {one}" for one in words]


def bounded(
    command: list[str],
    limit: float,
    folder: Path,
    logs: Path,
    env: Mapping[str, str],
    stop: threading.Event,
) -> Ended:
    """Run `command` in `folder`; after `limit` seconds, or at `stop`, end it and its processes."""
    if stop.is_set():
        raise KeyboardInterrupt
    mark = f"<{os.getpid()}-{time.monotonic_ns()}>"
    marked = {**env, MARK: env.get(MARK, "") + mark}
    handle, name = tempfile.mkstemp(suffix=".out", dir=logs)
    out, err = Path(name), Path(name).with_suffix(".err")
    began = time.monotonic()
    with open(handle, "wb") as to_out, open(err, "wb") as to_err:
        child = subprocess.Popen(
            command, cwd=folder, env=marked, stdin=subprocess.DEVNULL, stdout=to_out,
            stderr=to_err, start_new_session=True,
        )  # fmt: skip
        try:
            while child.poll() is None and time.monotonic() < began + limit:
                if stop.wait(0.05):
                    raise KeyboardInterrupt
            code = child.poll()
        finally:
            _end(child, mark)
    return Ended(code, time.monotonic() - began, out, err)


def _end(child: subprocess.Popen, mark: str) -> None:
    """Interrupt running processes so that they can clean up, then kill the rest."""
    if child.poll() is None:
        _signal(child, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE)
    _signal(child, signal.SIGKILL)  # also the remaining processes of its group
    child.wait()
    kill(mark)


def _signal(child: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def kill(mark: str) -> None:
    """Kill every process with the mark until none is left, since they may start new ones."""
    for _ in range(200):
        marked = _with(mark)
        if not marked:
            return
        for pid in marked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _with(mark: str) -> list[int]:
    """Find the living processes whose initial environment contains the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Mark all processes started in the body. A second process kills the remaining ones when this
    process has ended, even by SIGKILL, because its pipe is then closed."""
    mark, before = f"<{os.getpid()}-{time.monotonic_ns()}>", os.environ.get(MARK, "")
    command = [sys.executable, "-I", __file__, mark]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        os.environ[MARK] = before + mark
        try:
            yield
        finally:
            os.environ[MARK] = before


if __name__ == "__main__":
    sys.stdin.read()
    kill(sys.argv[1])
