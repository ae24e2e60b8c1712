"""Where running ranks keep their files, and how stray ones are found and ended.

Each cluster has one private folder with its sockets, its board and a note of whose it is; the
folder goes when the cluster ends, and `course stop` ends what a crash has left behind.
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
        """Whether the process lives, and its number does not belong to another one now."""
        try:
            process = psutil.Process(self.owner)
            alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            return alive and abs(process.create_time() - self.owner_started) < 1
        except psutil.NoSuchProcess:
            return False

    def living(self) -> list[int]:
        """The processes of its ranks, and what their cells have started or forked."""
        return belonging(set(), [str(self.folder)])

    def end(self) -> int:
        """Kill what still runs and remove the folder; how many processes there were."""
        return end_all([], [str(self.folder)], remove=True)


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


def new_folder(notebook: str = "") -> Path:
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=runtime_root()))
    # A unix socket's path has to fit into 107 bytes; the longest here is FOLDER/rank-999-ipc-5.
    if len(str(folder)) > 85:
        folder.rmdir()
        raise RuntimeError(
            f"{folder} is too long a path for the ranks' sockets ({len(str(folder))} characters, "
            "85 at most); set COURSE_RUNTIME_DIR to a shorter one"
        )
    me = psutil.Process()
    note = {"owner": me.pid, "owner_started": me.create_time(), "notebook": notebook}
    (folder / "note.json").write_text(json.dumps(note))
    return folder


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
    return sum(run.end() for run in all_runs() if not run.owner_alive())
