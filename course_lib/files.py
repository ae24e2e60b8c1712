"""Files that reach the disk whole: a file is the old one or the new one, and never a part of it.

A new file is written beside its place, synced, and renamed to it in one step; a rename lasts once
the folder that holds the name is synced too. What is kept between two runs goes this way.
Lesson 00.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

# What a file system answers that cannot sync a folder, or does not let this user open it.
NOT_OFFERED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM)


def _sync_file_range() -> Callable | None:
    """The C library's call, by its own types."""
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_RANGE = _sync_file_range()


def sync_file(file: IO) -> None:
    """Flush an open file and wait until its bytes are on the disk."""
    file.flush()
    os.fsync(file.fileno())


def start_writing(file: int) -> None:
    """Have the system begin to write an open file's new bytes to the disk, and do not wait for it:
    less is left for the sync. A hint, where there is such a call (Linux)."""
    if _RANGE is not None:
        _RANGE(file, 0, 0, 2)  # the whole file; SYNC_FILE_RANGE_WRITE


def sync_folder(folder: str | os.PathLike) -> None:
    """Wait until the names in a folder are on the disk, where the file system offers that."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in NOT_OFFERED:
            raise


def write_whole(path: str | os.PathLike, content: str | bytes) -> None:
    """Put `content` in the place of the file `path`, whole or not at all; text goes in UTF-8."""
    with replacing(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: str | os.PathLike, mode: str = "w", **options) -> Iterator[IO]:
    """Open a new file that takes the place of `path` once it is whole on the disk, not before.

    `mode` and `options` are those of `open`. A link stays, and the file that it names is replaced;
    permissions stay as well. An error in the body, or on the way to the disk, leaves the old file.
    """
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    handle, beside = tempfile.mkstemp(prefix=f".~{name}-", dir=folder)
    try:
        with os.fdopen(handle, mode, **options) as file:
            yield file
            sync_file(file)
        os.chmod(beside, _permissions(path))
        os.replace(beside, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise
    sync_folder(folder)


def _permissions(path: str) -> int:
    """The permissions that the file has, or those that a new one would get."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def locked(file, patience: float = 0.0) -> bool:
    """Whether the lock on an open file is ours now, after a wait for another program up to a bound;
    a disk that knows no locks says yes."""
    limit = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= limit:
                return False
            time.sleep(0.02)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            return True
