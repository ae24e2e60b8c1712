"""A tree of processes with its limits on number, memory and time, and its complete removal.

All descendants of a process count, including orphans: on Linux their ancestor adopts them, and a
mark in their environment also identifies them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "COURSE_SUBMISSION"  # a variable whose value identifies a submission's processes
_PR_SET_CHILD_SUBREAPER, _PR_SET_PDEATHSIG = 36, 1
END = 10.0  # seconds within which all processes of a tree must end


@dataclass(frozen=True)
class Limits:
    seconds: float = 60.0  # from the moment when its ranks are ready
    memory: int = 4_000_000_000  # bytes of all its processes together
    processes: int = 64
    threads: int = 1000
    start: float = 180.0  # seconds for our own start-up on a busy machine


class Tree:
    """All descendants of the current process, including orphans (Linux)."""

    def __init__(self):
        self._me = psutil.Process()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def members(self) -> list[psutil.Process]:
        return [p for p in self._me.children(recursive=True) if _lives(p)]

    def over(self, limits: Limits) -> tuple[str, str]:
        """Return an exceeded limit as (outcome, numbers), or empty strings if there is none."""
        members = self.members()
        taken = [_status(process) for process in members]
        threads, memory = (sum(one[i] for one in taken) for i in (0, 1))
        if len(members) > limits.processes:
            return "too many processes", f"{len(members)}, but {limits.processes} are allowed"
        if threads > limits.threads:
            return "too many processes", f"{threads} threads, but {limits.threads} are allowed"
        if memory > limits.memory:
            # Memory that forked processes share counts once: exact, but slow to find out.
            memory = sum(map(_share, members))
        if memory > limits.memory:
            told = f"{memory / 1e9:.1f} GB, but at most {limits.memory / 1e9:.1f} GB are allowed"
            return "out of memory", told
        return "", ""

    def end(self) -> int:
        """Kill all descendants, including new ones; return the number that were still running."""
        first = len(self.members())
        limit = time.monotonic() + END
        while (members := self.members()) and time.monotonic() < limit:
            # Stopped first, because a stopped process starts no others.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in members:
                    _signal(process.pid, number)
            reap()
            time.sleep(0.01)
        reap()
        return first


def end_with_parent() -> None:
    """Have this process killed when its parent ends, if the system supports that."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def reap() -> dict[int, int]:
    """Collect the exit codes of all children that have ended, including adopted ones."""
    ended = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and _lives(process):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # not ours, or ended meanwhile
    return found


def sweep(mark: str) -> int:
    """Kill every process with the mark, up to a time limit; return the number found at first."""
    first, limit = len(marked(mark)), time.monotonic() + END
    while (members := marked(mark)) and time.monotonic() < limit:
        for process in members:
            _signal(process.pid, signal.SIGKILL)
        psutil.wait_procs(members, timeout=0.2)
    return first


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        return ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _status(process: psutil.Process) -> tuple[int, int]:
    """Return a process's thread count and memory in bytes, without memory backed by files."""
    try:
        text = Path(f"/proc/{process.pid}/status").read_text()
    except FileNotFoundError:
        return _portable(process)
    except OSError:
        return 0, 0
    told = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    kilobytes = (told.get(name, "0").split()[0] for name in ("RssAnon", "RssShmem", "VmSwap"))
    return int(told.get("Threads", "1")), sum(int(number) << 10 for number in kilobytes)


def _share(process: psutil.Process) -> int:
    """Return a process's private memory plus its share of shared memory, in bytes."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:
        return _status(process)[1]
    told = dict(line.split(":", 1) for line in text.splitlines() if line.endswith("kB"))
    kilobytes = (told.get(name, "0").split()[0] for name in ("Pss_Anon", "Pss_Shmem", "SwapPss"))
    return sum(int(number) << 10 for number in kilobytes)


def _portable(process: psutil.Process) -> tuple[int, int]:
    try:
        return process.num_threads(), process.memory_info().rss
    except psutil.Error:
        return 0, 0
