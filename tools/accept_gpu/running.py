"""A command run to its end or to its limit, with everything it started.

What it prints goes to a file, of which a failure shows the end. No lesson derives it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 8.0  # seconds in which an interrupted command may clear its ranks away
TAIL = 40  # lines of a failure that go into the verdict


@dataclass(frozen=True)
class Ended:
    """An exit code (None: its time was up), the seconds, and where what it printed lies."""

    code: int | None
    seconds: float
    out: Path
    err: Path

    def tail(self) -> list[str]:
        """The last lines of both, its complaints last."""
        lines = [
            line
            for file in (self.out, self.err)
            for line in file.read_text(errors="replace").splitlines()
        ]
        return lines[-TAIL:]


@dataclass(frozen=True)
class Place:
    """Where a stage runs, and where it may put what it writes."""

    root: Path
    scratch: Path

    def python(self, limit: float, *arguments: str, **variables: str) -> Ended:
        command = [sys.executable, *arguments]
        return bounded(command, limit, self.root, self.scratch, {**os.environ, **variables})


def bounded(
    command: list[str], limit: float, folder: Path, logs: Path, env: Mapping[str, str]
) -> Ended:
    """Run `command` in `folder`; after `limit` seconds end it and all that it started."""
    number = len(list(logs.glob("*.out")))
    out, err = logs / f"{number}.out", logs / f"{number}.err"
    began = time.monotonic()
    with open(out, "wb") as to_out, open(err, "wb") as to_err:
        child = subprocess.Popen(
            command, cwd=folder, env=dict(env), stdin=subprocess.DEVNULL, stdout=to_out,
            stderr=to_err, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = child.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(child)
    return Ended(code, time.monotonic() - began, out, err)


def _end(child: subprocess.Popen) -> None:
    """Interrupt what still runs, so that it can tidy up, and kill what does not listen."""
    if child.poll() is None:
        _signal(child, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE)
    _signal(child, signal.SIGKILL)  # also what it left behind in its group
    child.wait()


def _signal(child: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)
