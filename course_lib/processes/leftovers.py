"""Find and end whatever a rank has left running: its session, and what bears its run's folder.

A program that a cell starts may outlive its rank, in a session of its own. It is known by the
session, by its parents while they live, by its environment, or by a file of the run that it holds
open.
"""

from __future__ import annotations

import os
import shutil
import signal
import time

_RANKS = (b"course_lib.processes", b"course_classroom.ranks.rank")  # in a rank's command line
ROUNDS = 20  # looks at all processes: one that forks while it is looked for shows in the next


def end_all(pids: list[int], folders: list[str], *, remove: bool = False) -> int:
    """Kill these processes, their sessions and all that belongs to `folders`; how many there were.

    With `remove` the folders go too.
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
                continue  # the session's, but no longer this user's
        if not living:
            break
        time.sleep(0.002 * min(round_ + 1, 10))
    if remove:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    return len(killed)


def belonging(sessions: set[int], folders: list[str]) -> list[int]:
    """The living processes of these sessions, their descendants, and what bears a folder."""
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
            continue  # it has ended in between, or is not ours to look at
    known, queue = set(found) | sessions, [*found, *sessions]
    while queue:  # what a rank has started, as long as the rank is there to name it
        above = queue.pop()
        below = [pid for pid, parent in parents.items() if parent == above and pid not in known]
        known.update(below)
        queue.extend(below)
        found.extend(below)
    return found


def _bears(name: str, folders: list[str]) -> bool:
    """Whether a process names one of the folders in its environment, or uses a file in one."""
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
    # The notebook's process and what that has forked map the board too, and are no rank's.
    if not any(word in _read(name, "cmdline") for word in _RANKS):
        return False
    boards = [os.fsencode(os.path.realpath(folder)) + b"/" for folder in folders]
    maps = _read(name, "maps")
    return any(board in maps for board in boards)


def _read(name: str, what: str) -> bytes:
    with open(f"/proc/{name}/{what}", "rb") as file:
        return file.read()
