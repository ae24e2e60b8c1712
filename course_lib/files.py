"""Files that are never partly written: a reader sees the complete old or the complete new file.

A new file is written in the same folder, synced, and then renamed in one step. The rename is
permanent once the folder is synced too. All files kept between runs are written in this way.
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

# Errors of a file system that cannot sync a folder, or does not let this user open it.
NOT_OFFERED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM)


def _sync_file_range() -> Callable | None:
    """Return the C library's call, with its argument types."""
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
    """Ask the system to begin writing an open file's new bytes to the disk, without waiting, so
    that less is left for the sync. This is only a hint, and only on Linux."""
    if _RANGE is not None:
        _RANGE(file, 0, 0, 2)  # the whole file; SYNC_FILE_RANGE_WRITE


def sync_folder(folder: str | os.PathLike) -> None:
    """Wait until the names in a folder are on the disk, if the file system supports that."""
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
    """Replace the file `path` by `content`, completely or not at all; text is encoded in UTF-8."""
    with replacing(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: str | os.PathLike, mode: str = "w", **options) -> Iterator[IO]:
    """Open a new file that replaces `path` only once it is completely on the disk.

    `mode` and `options` are passed to `open`. If `path` is a link, its target is replaced.
    Permissions stay as well. After an error in the body or during the write, the old file remains.
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
    """Return the permissions of the existing file, or default permissions if there is none."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def locked(file, patience: float = 0.0) -> bool:
    """Lock an open file, waiting at most `patience` seconds for other programs, and return True on
    success. On a disk without locks, the result is True."""
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
