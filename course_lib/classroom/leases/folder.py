"""The folder that all notebooks of a node share, and locks on files in it, safe among strangers.

Everybody may write there, so nothing in it is trusted: no link is followed, no file is opened that
is not a plain one, and every wait for a lock ends.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 5.0  # seconds for the mutex, which each notebook holds for milliseconds
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in a file's place must not block


class Unusable(Exception):
    """Why leases cannot be had here, in words."""


def node_folder() -> Path:
    """COURSE_LEASES, else a folder where everybody on this machine finds the same one."""
    chosen = os.environ.get("COURSE_LEASES")
    if chosen:
        return Path(chosen)
    # Hubs give each user a /tmp of their own, and cleaners empty it; /run/lock is one for all.
    for base in (Path("/run/lock"), Path(tempfile.gettempdir())):
        with suppress(OSError):
            if base.stat().st_mode & 0o1777 == 0o1777:
                return base / "course-node"
    return Path(tempfile.gettempdir()) / "course-node"


@contextmanager
def one_at_a_time(
    folder: Path, *, create: bool = True, patience: float = PATIENCE
) -> Iterator[bool]:
    """Nobody else looks or claims meanwhile. False: without `create`, there is no such folder."""
    with _said(folder):
        there = _make(folder) if create else _sound(folder)
        handle = _wait_for(folder / "mutex", patience) if there else None
    try:
        yield there
    finally:
        if handle is not None:
            os.close(handle)


def try_lock(path: Path) -> int | None:
    """The exclusive lock on a file, made where it is missing; None where somebody holds it."""
    with _said(path.parent):
        while True:
            handle = _open(path)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(handle, path):
                    return handle
                os.close(handle)  # removed between the opening and the lock: once more
            except BlockingIOError:
                os.close(handle)
                return None
            except BaseException:
                os.close(handle)
                raise


def read_locked(path: Path, most: int) -> tuple[bytes, int] | None:
    """The content and the owner of a file that somebody holds; None where nobody does."""
    handle = os.open(path, os.O_RDONLY | _SAFE)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is not a file")
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            return os.read(handle, most), found.st_uid
    finally:
        os.close(handle)


def new_locked(folder: Path, prefix: str, content: bytes) -> tuple[Path, int]:
    """A new file with a name of its own, locked and readable for everybody."""
    with _said(folder):
        handle, name = tempfile.mkstemp(prefix=prefix, dir=folder)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(handle, 0o644)
            os.write(handle, content)
        except BaseException:
            os.close(handle)
            os.unlink(name)
            raise
        return Path(name), handle


def _make(folder: Path) -> bool:
    if _sound(folder):
        return True
    # Made aside and moved: whatever the umask, nobody ever sees it closed to others.
    try:
        aside = tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)
    except OSError as error:
        raise Unusable(f"{folder}: {error.strerror}") from error
    try:
        os.chmod(aside, 0o1777)
        os.rename(aside, folder)
    except OSError:
        os.rmdir(aside)
        if not _sound(folder):  # else somebody was first
            raise
    return True


def _sound(folder: Path) -> bool:
    """Whether the folder is there; what is there in its place and no such folder is refused."""
    try:
        mode = os.lstat(folder).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise Unusable(f"{folder} is a {'link' if stat.S_ISLNK(mode) else 'file'}, not a folder")
    if mode & 0o002 and not mode & stat.S_ISVTX:
        raise Unusable(f"in {folder} anybody can remove others' files (`chmod 1777` mends it)")
    return True


def _wait_for(path: Path, patience: float) -> int:
    limit = time.monotonic() + patience
    while True:
        handle = try_lock(path)
        if handle is not None:
            return handle
        if time.monotonic() > limit:
            raise Unusable(f"another process has held {path} for {patience:g} s")
        time.sleep(0.005)


def _open(path: Path) -> int:
    # First without O_CREAT: with it, Linux refuses other users' files in such a folder.
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDONLY):
        try:
            handle = os.open(path, flags | _SAFE, 0o644)
        except (FileNotFoundError, FileExistsError):
            continue  # somebody removed it, or was first to make it
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Unusable(f"{path} is not a file")
            if flags & os.O_CREAT:
                os.fchmod(handle, 0o644)  # whatever the umask: others have to open it
        except BaseException:
            os.close(handle)
            raise
        return handle
    raise Unusable(f"{path} comes and goes")


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


@contextmanager
def _said(folder: Path) -> Iterator[None]:
    """An error of the operating system, in words that name the file."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise Unusable(f"{where}: {error.strerror or error}") from error
