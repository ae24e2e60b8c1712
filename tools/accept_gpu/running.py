"""A command run to its end or to its limit, with everything it started.

What a command starts carries its mark in the environment and is found by it in /proc, since ranks
make sessions of their own. Without /proc its process group alone is ended. No lesson derives it.
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

PATIENCE = 8.0  # seconds in which an interrupted command may clear its ranks away
LEAST = 8.0  # seconds without which no command is begun
TAIL = 40  # lines of a failure that go into the verdict
MARK = "COURSE_ACCEPT_MARK"
HOUSE = str(Path(__file__).resolve().parents[2])  # ranks and kernels run in other folders


@dataclass(frozen=True)
class Ended:
    """An exit code (None: its time was up), the seconds, and where what it printed lies."""

    code: int | None
    seconds: float
    out: Path | None = None
    err: Path | None = None
    left_out: str = ""  # where the time of all was up before its own

    def lines(self) -> list[str]:
        """All that it printed, its complaints last."""
        files = [file for file in (self.out, self.err) if file is not None]
        return [line for file in files for line in file.read_text(errors="replace").splitlines()]

    def how(self) -> str:
        """How a command without a result ended, with its last lines."""
        if self.left_out:
            return self.left_out
        how = f"not done after {self.seconds:.0f} s"
        how = how if self.code is None else f"ended with {self.code}"
        return ": ".join([how, *filter(None, [" ".join(self.lines()[-3:])])])


@dataclass(frozen=True)
class Place:
    """Where a stage runs, where it may put what it writes, and who is told of each part of it."""

    root: Path
    scratch: Path
    records: Path | None = None  # a line for each test; in scratch where none is named
    keep: Callable[[str, dict[str, Any]], None] = lambda name, found: None
    stop: threading.Event = field(default_factory=threading.Event)

    def python(self, limit: float, *arguments: str, **variables: str) -> Ended:
        command = [sys.executable, *arguments]
        path = os.pathsep.join(filter(None, [HOUSE, os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, **variables}
        return bounded(command, limit, self.root, self.scratch, env, self.stop)

    def within(self, until: float, each: float, *arguments: str, **variables: str) -> Ended:
        """At most `each` seconds, and no longer than `until`, a time of the monotonic clock."""
        left = until - time.monotonic()
        if left < LEAST:
            return Ended(None, 0.0, left_out="not begun: no time left")
        ended = self.python(min(left, each), *arguments, **variables)
        if ended.code is None and left < each:
            words = f"cut off after {ended.seconds:.0f} s: no time left"
            return Ended(None, ended.seconds, ended.out, ended.err, words)
        return ended

    def together(
        self, limit: float, each: float, jobs: Mapping[str, list[str]], at_once: int = 1
    ) -> Iterator[tuple[str, Ended]]:
        """Commands by name, some at once, all within `limit` seconds; each as soon as it ends."""
        until = time.monotonic() + limit
        with ThreadPoolExecutor(at_once) as threads:
            names = {
                threads.submit(self.within, until, each, *words): name
                for name, words in jobs.items()
            }
            for done in as_completed(names):
                yield names[done], done.result()


def grouped(left_out: Mapping[str, str]) -> list[str]:
    """Names with the same words together."""
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
    """Run `command` in `folder`; after `limit` seconds, or at `stop`, end it and all it started."""
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
    """Interrupt what still runs, so that it can tidy up, and kill what does not listen."""
    if child.poll() is None:
        _signal(child, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE)
    _signal(child, signal.SIGKILL)  # also what it left behind in its group
    child.wait()
    kill(mark)


def _signal(child: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def kill(mark: str) -> None:
    """Kill every process with the mark until none is left: they may start others meanwhile."""
    for _ in range(200):
        marked = _with(mark)
        if not marked:
            return
        for pid in marked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _with(mark: str) -> list[int]:
    """The living processes with the mark in the environment that they began with."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Mark all that is started in the body, and have a second process kill what is left of it when
    this one is gone, by SIGKILL too: its pipe is then closed."""
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
