"""The lock on a run's folder: rank 0 holds it on a file there, so no second run can use the folder.

The kernel releases a lock when its process ends in any way, so a killed run blocks nothing. If the
folder is taken, all ranks learn its owner. Lesson 08.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist

from course_lib import ranks
from course_lib.pretrained.header import CheckpointError
from course_lib.train.checks import check_folder
from course_lib.train.host_agreement import check_shared
from course_lib.train.options import Options, Refused

LOCK = ".run.lock"


@contextlib.contextmanager
def locked_folder(options: Options, me: ranks.Me) -> Iterator[Path]:
    """Yield the run's folder (by default a new one below runs/), created if missing and locked
    during the body. Every rank calls it; if a different run holds the folder, all ranks refuse."""
    out = Path(options.out) if options.out else None
    lock, reply = None, ["", ""]
    if me.rank == 0:
        try:
            lock = Lock(out, me.world)
            check_folder(options)  # only when no other run can write there
            reply[0] = str(lock.folder)
        except (Refused, CheckpointError) as refusal:
            reply[1] = str(refusal)
        except OSError as error:
            reply[1] = f"--out {out or 'runs/'}: {error.strerror}. Name a writable folder"
    try:
        dist.broadcast_object_list(reply, src=0)
        folder, refusal = reply
        if refusal:
            raise Refused(refusal)
        if me.local_world != me.world:
            check_shared(Path(folder), me)
        yield Path(folder)
    finally:
        if lock is not None:
            lock.release()


class Lock:
    """The lock on a folder, from its creation until `release`."""

    def __init__(self, folder: Path | None, world: int):
        self._made: list[Path] = []  # folders that did not exist, innermost first
        self.folder = self._new() if folder is None else folder
        self._make(self.folder)
        self.path = self.folder / LOCK
        try:
            self._file = self._claimed()
        except BaseException:
            self._take_away()
            raise
        if self._file is not None:
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            owner = f"process {os.getpid()} on {socket.gethostname()} and its {world} rank(s)"
            os.ftruncate(self._file, 0)  # content of a killed run
            os.pwrite(self._file, f"another run, {owner}, since {since}".encode(), 0)

    def release(self) -> None:
        """Remove the file while the lock is still held, and the folders that are still empty."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(self._file)
            self._file = None
        self._take_away()

    def _claimed(self) -> int | None:
        """Return the locked open file, or None if the file system has no locks."""
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(file, self.path):
                    return file
            except BlockingIOError as error:
                holder = os.pread(file, 1000, 0).decode(errors="replace")
                holder = holder or "another run, which has just started"
                os.close(file)
                raise Refused(
                    f"--out {self.folder} is in use by {holder}; name a different --out, or end "
                    "that run first (two runs overwrite each other's checkpoints)"
                ) from error
            except OSError as error:
                os.close(file)
                print(
                    f"course train: --out {self.folder} is on a file system without locks "
                    f"({error.strerror}), so make sure that no other run writes there",
                    file=sys.stderr,
                )
                return None
            os.close(file)  # a different run removed the file after it was opened here

    def _new(self) -> Path:
        """Create a folder named after the time; two runs in the same second get two folders."""
        stem = time.strftime("runs/%Y%m%d-%H%M%S")
        self._make(Path("runs"))
        for number in itertools.count(1):
            path = Path(stem if number == 1 else f"{stem}-{number}")
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                break
        self._made.insert(0, path)
        return path

    def _make(self, folder: Path) -> None:
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self._made = [*missing, *self._made]

    def _take_away(self) -> None:
        """Remove the folders of a refused run; folders with a file are kept."""
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _is_at(file: int, path: Path) -> bool:
    """Return True if the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
