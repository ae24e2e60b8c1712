"""Forks of this process itself, a launcher that has imported everything its ranks need.

A launcher's ranks start together and nothing else is forked from it, so it needs no prepared
process. The ranks are its children, and `ps` shows them with its command line.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import subprocess
from collections.abc import Iterator

from course_lib.processes.child import become
from course_lib.processes.client import NUMPY_THREADS, Wanted, asked
from course_lib.processes.processes import spawn, why_other, why_spawned
from course_lib.processes.safe import why_unsafe


class Forked:
    """A child like `Popen`'s: `pid`, `poll`, `wait`, `kill`, `send_signal`, `returncode`."""

    def __init__(self, wanted: Wanted):
        nobody = os.open(os.devnull, os.O_WRONLY)  # a prepared process would wait for this
        self._process = multiprocessing.get_context("fork").Process(
            target=become, args=(asked(wanted), [*wanted.descriptors(), nobody])
        )
        try:
            self._process.start()
        finally:
            os.close(nobody)
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal, or None while the child lives."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # not reaped, so the number is still this child's
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


Process = Forked | subprocess.Popen


def start_here(wanted: Wanted, command: list[str], modules: tuple[str, ...] = ()) -> Process:
    """Start the `wanted` child as a fork of this process, or `command` if forking is not safe."""
    if why_spawned() or why_other(wanted.env):
        return spawn(wanted, command)
    for name in (*modules, wanted.target.partition(":")[0]):
        importlib.import_module(name)  # once, instead of in every child
    if why_unsafe():
        return spawn(wanted, command)
    gc.freeze()  # keeps these pages shared when a child collects garbage
    return Forked(wanted)


@contextlib.contextmanager
def without_threads() -> Iterator[None]:
    """Stop numpy from starting threads at import, since a process with threads is not forked."""
    kept = os.environ.get(NUMPY_THREADS)
    os.environ[NUMPY_THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(NUMPY_THREADS)
        if kept is not None:
            os.environ[NUMPY_THREADS] = kept
