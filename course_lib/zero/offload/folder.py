"""The folder of the files: this run's alone, by a lock for each rank; removed at the end.

What another run left is named and not touched, unless it is asked for; foreign files never are.
Lesson 12.
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
BESIDE = {"lost+found"}  # what a disk's topmost folder holds by itself


class Unwritten:
    """The files of one engine on one rank by their sizes: in a dry run none is made."""

    def __init__(self, path: str | Path):
        self.path, self.rank = Path(path), dist.get_rank()
        self.files: list[File] = []
        self._charges: list[Charge] = []

    def make(self, bucket: int, nbytes: int) -> File:
        """A file for a bucket, with its bytes set aside and counted in the tier disk."""
        self._charges.append(charge("disk", nbytes, f"the file of bucket {bucket}"))
        name = f"zero-rank-{self.rank:05d}-bucket-{bucket:04d}.states"
        self.files.append(self._make(self.path / name, nbytes))
        return self.files[-1]

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        self.files.clear()
        while self._charges:
            self._charges.pop().release()

    def _make(self, path: Path, nbytes: int) -> File:
        return File(path, -1, nbytes, True)


class Folder(Unwritten):
    """The files of one engine on one rank. Made by all ranks together."""

    def __init__(self, path: str | Path, groups: Sequence[Group], *, take_over: bool = False):
        super().__init__(path)
        self._own: list[tuple[int, Path]] = []  # what is open, and to be removed
        self._end = weakref.finalize(self, _remove, self._own, self._charges, os.getpid())
        together(None, groups)  # an engine before this one is closed on every rank
        # All look before any of them makes a file: nobody takes another rank for a stranger.
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
    """Raise if the folder is missing, foreign, another run's, or a run's that did not close."""
    if not path.is_dir():
        kind, number = ("no folder", errno.ENOTDIR) if path.exists() else ("missing", errno.ENOENT)
        raise OSError(number, f"the offload folder {path} is {kind}: make it, on the disk for it")
    names = sorted(one.name for one in path.iterdir())
    ours = [name for name in names if OURS.fullmatch(name)]
    foreign = [name for name in names if name not in ours and name not in BESIDE]
    if foreign:
        raise OSError(
            errno.ENOTEMPTY,
            f"the offload folder {path} holds {len(foreign)} files that are not an engine's "
            f"({', '.join(foreign[:3])}{', …' if len(foreign) > 3 else ''}), and they are left "
            "alone: name a folder that holds nothing else",
        )
    owners = [owner(path / name) for name in ours if name.endswith(".lock")]
    alive = [who for who, living in owners if living]
    if alive:
        raise OSError(
            errno.EBUSY,
            f"the offload folder {path} is in use by {' and '.join(alive[:2])}: every engine needs "
            "a folder of its own; close that one, or name another",
        )
    if ours and not take_over:
        who = f" ({owners[0][0]})" if owners else ""
        raise OSError(
            errno.EEXIST,
            f"the offload folder {path} holds {len(ours)} files of a run that did not close{who}. "
            "Nothing can go on from them; to remove them and use the folder, pass "
            "offload={…, 'take_over': True}",
        )


def owner(lock: Path) -> tuple[str, bool]:
    """Who made a lock, in words, and whether they hold it still."""
    living = False
    try:
        with lock.open("rb") as file:
            try:
                # Shared: several ranks may ask at once without taking each other for the owner.
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
    """At close, at exit, or when the engine is gone; not in a process forked off meanwhile."""
    if os.getpid() != pid:
        return
    while files:
        fd, path = files.pop()  # the lock was the first, and goes last
        with contextlib.suppress(OSError):
            path.unlink()
        with contextlib.suppress(OSError):
            os.close(fd)
    while charges:
        charges.pop().release()
