"""Where running ranks keep their files, and how stray ones are found and ended.

Each cluster has one private folder with its sockets, its board and a note of who belongs to it; the
folder goes when the cluster ends, and `course stop` ends what a crash has left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from course_lib.prepared.leftovers import end_all


@dataclass(frozen=True)
class Run:
    """A cluster as its note describes it."""

    folder: Path
    owner: int  # the notebook's process
    owner_started: float
    ranks: list[int]
    ranks_started: list[float]
    notebook: str

    def owner_alive(self) -> bool:
        return _same_process(self.owner, self.owner_started) is not None

    def living_ranks(self) -> list[psutil.Process]:
        pairs = zip(self.ranks, self.ranks_started, strict=True)
        found = [_same_process(pid, started) for pid, started in pairs]
        return [process for process in found if process is not None]

    def end(self) -> int:
        """Kill what still runs and remove the folder; how many processes there were.

        What the ranks' cells have started or forked counts, and ends, too.
        """
        living = self.living_ranks()
        count = end_all([process.pid for process in living], [str(self.folder)], remove=True)
        psutil.wait_procs(living, timeout=3)
        return count


def runtime_root() -> Path:
    """The user's own folder for running clusters, refused when somebody else owns it."""
    base = os.environ.get("COURSE_RUNTIME_DIR")
    root = Path(base) if base else Path(tempfile.gettempdir()) / f"course-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeError(
            f"no folder for the ranks' sockets can be made at {root} ({error.strerror}); "
            "set COURSE_RUNTIME_DIR to a short path you can write to"
        ) from error
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RuntimeError(
            f"{root} is not a folder that belongs to you alone; remove it, or set "
            "COURSE_RUNTIME_DIR to another place"
        )
    return root


def new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=runtime_root()))
    # A unix socket's path has to fit into 107 bytes; the longest here is FOLDER/rank-999-ipc-5.
    if len(str(folder)) > 85:
        folder.rmdir()
        raise RuntimeError(
            f"{folder} is too long a path for the ranks' sockets ({len(str(folder))} characters, "
            "85 at most); set COURSE_RUNTIME_DIR to a shorter one"
        )
    return folder


def write_note(folder: Path, pids: list[int], notebook: str) -> None:
    me = psutil.Process()
    note = {
        "owner": me.pid,
        "owner_started": me.create_time(),
        "ranks": pids,
        "ranks_started": [psutil.Process(pid).create_time() for pid in pids],
        "notebook": notebook,
    }
    (folder / "note.json").write_text(json.dumps(note))


def all_runs() -> list[Run]:
    """Every cluster of this user, by the notes they left."""
    runs = []
    for note in sorted(runtime_root().glob("run-*/note.json")):
        try:
            runs.append(Run(folder=note.parent, **json.loads(note.read_text())))
        except (OSError, ValueError, TypeError):
            continue  # being written, or being removed
    return runs


def sweep() -> int:
    """End what belongs to notebooks that are gone; how many processes that were."""
    ended = sum(run.end() for run in all_runs() if not run.owner_alive())
    for folder in runtime_root().glob("run-*"):
        # A folder without a note after a minute belongs to a start that was killed.
        if not (folder / "note.json").exists() and time.time() - folder.stat().st_mtime > 60:
            shutil.rmtree(folder, ignore_errors=True)
    return ended


def _same_process(pid: int, started: float) -> psutil.Process | None:
    """The process, unless it is gone or its number belongs to another one now."""
    try:
        process = psutil.Process(pid)
        alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return process if alive and abs(process.create_time() - started) < 1 else None
    except psutil.NoSuchProcess:
        return None
