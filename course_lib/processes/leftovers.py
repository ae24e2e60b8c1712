"""The search for all processes that a rank has left running, and their termination.

A program that a cell starts may outlive its rank, in its own session. Such a program is recognised
by its session, by its parents while they live, by the run's folder in its environment, or by an
open file of the run.
"""

from __future__ import annotations

import os
import shutil
import signal
import time

_RANKS = (b"course_lib.processes", b"course_classroom.ranks.rank")  # in a rank's command line
ROUNDS = 20  # scans of all processes; a process that forks during a scan appears in the next


def end_all(pids: list[int], folders: list[str], *, remove: bool = False) -> int:
    """Kill these processes, their sessions and all processes of `folders`; return their number.

    With `remove` the folders are deleted too.
    """
    killed: set[int] = set()
    sessions = set(pids)
    for round_ in range(ROUNDS):
        living = belonging(sessions, folders)
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            except ProcessLookupError:
                continue
            except PermissionError:
                continue  # in the session, but no longer this user's process
        if not living:
            break
        time.sleep(0.002 * min(round_ + 1, 10))
    if remove:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    return len(killed)


def belonging(sessions: set[int], folders: list[str]) -> list[int]:
    """Find living processes of these sessions, their descendants, and users of the folders."""
    ours = {os.getpid(), os.getppid()}
    found: list[int] = []
    parents: dict[int, int] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdigit() or int(name) in ours:
            continue
        pid = int(name)
        try:
            if os.stat(f"/proc/{name}").st_uid != os.getuid():
                continue
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            state, parents[pid], session = fields[0], int(fields[1]), int(fields[3])
            if state in (b"Z", b"X"):
                del parents[pid]
                continue
            if pid in sessions or session in sessions or _bears(name, folders):
                found.append(pid)
        except (OSError, IndexError, ValueError):
            continue  # it has ended meanwhile, or we may not inspect it
    known, queue = set(found) | sessions, [*found, *sessions]
    while queue:  # a rank's descendants, while the rank is still there
        above = queue.pop()
        below = [pid for pid, parent in parents.items() if parent == above and pid not in known]
        known.update(below)
        queue.extend(below)
        found.extend(below)
    return found


def _bears(name: str, folders: list[str]) -> bool:
    """Return True if a process has one of the folders in its environment, or a file of it open."""
    if not folders:
        return False
    wanted = [os.fsencode(f"COURSE_RUN_DIR={folder}") for folder in folders]
    if set(_read(name, "environ").split(b"\0")).intersection(wanted):
        return True
    inside = tuple(os.path.join(os.path.realpath(folder), "rank-") for folder in folders)
    for number in os.listdir(f"/proc/{name}/fd"):
        try:
            if os.readlink(f"/proc/{name}/fd/{number}").startswith(inside):
                return True
        except OSError:
            continue
    # The notebook's process and its forks also map the board, but belong to no rank.
    if not any(word in _read(name, "cmdline") for word in _RANKS):
        return False
    boards = [os.fsencode(os.path.realpath(folder)) + b"/" for folder in folders]
    maps = _read(name, "maps")
    return any(board in maps for board in boards)


def _read(name: str, what: str) -> bytes:
    with open(f"/proc/{name}/{what}", "rb") as file:
        return file.read()
