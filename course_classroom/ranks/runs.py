"""Files of running ranks, and the search for stray ranks.

Each cluster has a private folder with its sockets, its board and a note about its owner. The folder
is removed when the cluster ends, and `course stop` ends processes left by a crash.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from course_lib.processes.leftovers import belonging, end_all


@dataclass(frozen=True)
class Run:
    folder: Path
    owner: int  # the notebook's process
    owner_started: float
    notebook: str

    def owner_alive(self) -> bool:
        """Return True if the owner lives, and no new process has reused its process id."""
        try:
            process = psutil.Process(self.owner)
            alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            return alive and abs(process.create_time() - self.owner_started) < 1
        except psutil.NoSuchProcess:
            return False

    def living(self) -> list[int]:
        """Return the processes of the ranks, and the processes that their cells have started."""
        return belonging(set(), [str(self.folder)])

    def end(self) -> int:
        """Kill all these processes and remove the folder; return the number of killed processes."""
        return end_all([], [str(self.folder)], remove=True)


def runtime_root() -> Path:
    """Return the user's folder for running clusters, or raise an error if another user owns it."""
    base = os.environ.get("COURSE_RUNTIME_DIR")
    root = Path(base) if base else Path(tempfile.gettempdir()) / f"course-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeError(
            f"no folder for the ranks' sockets can be created at {root} ({error.strerror}); set "
            "COURSE_RUNTIME_DIR to a short path that you can write to"
        ) from error
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RuntimeError(
            f"{root} is not a folder that belongs only to you; remove it, or set "
            "COURSE_RUNTIME_DIR to a different place"
        )
    return root


def new_folder(notebook: str = "") -> Path:
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=runtime_root()))
    # A unix socket's path is limited to 107 bytes; the longest is FOLDER/rank-999-ipc-5.
    if len(str(folder)) > 85:
        folder.rmdir()
        raise RuntimeError(
            f"the path {folder} is too long for the ranks' sockets ({len(str(folder))} characters, "
            "at most 85); set COURSE_RUNTIME_DIR to a shorter one"
        )
    me = psutil.Process()
    note = {"owner": me.pid, "owner_started": me.create_time(), "notebook": notebook}
    (folder / "note.json").write_text(json.dumps(note))
    return folder


def all_runs() -> list[Run]:
    """Return every cluster of this user, read from the notes."""
    runs = []
    for note in sorted(runtime_root().glob("run-*/note.json")):
        try:
            runs.append(Run(folder=note.parent, **json.loads(note.read_text())))
        except (OSError, ValueError, TypeError):
            continue  # being written, or being removed
    return runs


def sweep() -> int:
    """End the ranks of notebooks that have ended; return the number of ended processes."""
    return sum(run.end() for run in all_runs() if not run.owner_alive())
