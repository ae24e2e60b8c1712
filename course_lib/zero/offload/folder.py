"""The folder of the files: used only by this run, locked by each rank, emptied at the end.

Files of a different run are reported and kept, unless the user requests their removal. Foreign
files are never removed. Lesson 12.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from course_lib.collectives.call import Group
from course_lib.memory import Charge, charge
from course_lib.zero.offload.files import File, make
from course_lib.zero.offload.shared_errors import together

OURS = re.compile(r"zero-rank-(\d{5})(\.lock|-bucket-\d{4,}\.states)")
BESIDE = {"lost+found"}  # present in a disk's root folder


class Unwritten:
    """The files of one engine on one rank by size only, for a dry run that creates none."""

    def __init__(self, path: str | Path):
        self.path, self.rank = Path(path), dist.get_rank()
        self.files: list[File] = []
        self._charges: list[Charge] = []

    def make(self, bucket: int, nbytes: int) -> File:
        """Create a file for a bucket, with its bytes reserved and counted in the tier disk."""
        self._charges.append(charge("disk", nbytes, f"the file of bucket {bucket}"))
        name = f"zero-rank-{self.rank:05d}-bucket-{bucket:04d}.states"
        self.files.append(self._make(self.path / name, nbytes))
        return self.files[-1]

    def close(self) -> None:
        """Release everything; a second call does nothing."""
        self.files.clear()
        while self._charges:
            self._charges.pop().release()

    def _make(self, path: Path, nbytes: int) -> File:
        return File(path, -1, nbytes, True)


class Folder(Unwritten):
    """The files of one engine on one rank, created by all ranks together."""

    def __init__(self, path: str | Path, groups: Sequence[Group], *, take_over: bool = False):
        super().__init__(path)
        self._own: list[tuple[int, Path]] = []  # open files, to be removed
        self._end = weakref.finalize(self, _remove, self._own, self._charges, os.getpid())
        together(None, groups)  # earlier engines are closed on every rank
        # All ranks check before any creates a file, so that they do not find each other's files.
        together(_tried(look, self.path, take_over), groups)
        if take_over:
            together(_tried(_clear, self.path), groups)
        try:
            together(_tried(self._claim), groups)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        self._end()
        super().close()

    def _make(self, path: Path, nbytes: int) -> File:
        file = make(path, nbytes)
        self._own.append((file.fd, path))
        return file

    def _claim(self) -> None:
        path = self.path / f"zero-rank-{self.rank:05d}.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._own.append((fd, path))
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "rank": self.rank}
        os.write(fd, json.dumps({**owner, "since": since}).encode())


def look(path: Path, take_over: bool) -> None:
    """Raise if the folder is missing, foreign, in use, or left by a run that did not close."""
    if not path.is_dir():
        kind, number = ("no folder", errno.ENOTDIR) if path.exists() else ("missing", errno.ENOENT)
        raise OSError(number, f"the offload folder {path} is {kind}: create it, on the disk for it")
    names = sorted(one.name for one in path.iterdir())
    ours = [name for name in names if OURS.fullmatch(name)]
    foreign = [name for name in names if name not in ours and name not in BESIDE]
    if foreign:
        raise OSError(
            errno.ENOTEMPTY,
            f"the offload folder {path} holds {len(foreign)} files that are not an engine's "
            f"({', '.join(foreign[:3])}{', …' if len(foreign) > 3 else ''}), which are not "
            "removed: choose a folder without other files",
        )
    owners = [owner(path / name) for name in ours if name.endswith(".lock")]
    alive = [who for who, living in owners if living]
    if alive:
        raise OSError(
            errno.EBUSY,
            f"the offload folder {path} is in use by {' and '.join(alive[:2])}, but every engine "
            "needs a separate folder. Close that engine, or choose a different folder",
        )
    if ours and not take_over:
        who = f" ({owners[0][0]})" if owners else ""
        raise OSError(
            errno.EEXIST,
            f"the offload folder {path} holds {len(ours)} files of a run that did not close{who}. "
            "A run cannot continue from them. To remove them and use the folder, pass "
            "offload={…, 'take_over': True}",
        )


def owner(lock: Path) -> tuple[str, bool]:
    """Return the process that made a lock, in words, and True if it still holds the lock."""
    living = False
    try:
        with lock.open("rb") as file:
            try:
                # A shared lock, so that ranks that ask at once do not look like owners.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                living = True
            told = json.loads(file.read().decode())
        return f"process {told['pid']} on {told['host']}, since {told['since']}", living
    except (OSError, ValueError, KeyError, TypeError):
        return f"a process that {lock.name} does not name", living


def _clear(path: Path) -> None:
    for one in path.iterdir():
        if OURS.fullmatch(one.name):
            one.unlink(missing_ok=True)


def _tried(call, *arguments) -> Exception | None:
    try:
        call(*arguments)
    except OSError as error:
        return error
    return None


def _remove(files: list[tuple[int, Path]], charges: list[Charge], pid: int) -> None:
    """Remove the files at close, at exit or after the engine's end, but not in a forked process."""
    if os.getpid() != pid:
        return
    while files:
        fd, path = files.pop()  # the lock, the first entry, is removed last
        with contextlib.suppress(OSError):
            path.unlink()
        with contextlib.suppress(OSError):
            os.close(fd)
    while charges:
        charges.pop().release()
