"""The folder that all notebooks of a node share, with locks that are safe among untrusted users.

Because every user may write there, its content is not trusted: links are not followed, only regular
files are opened, and every wait for a lock is bounded.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from course_lib.files import locked

PATIENCE = 5.0  # seconds for the folder, which a notebook holds only for milliseconds
_SAFE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not block
_ABOUT = "GPUs, cores and memory of this machine and their holders: see `course status --all`.\n"


class Unusable(Exception):
    """An error that states why leases are not possible here."""


def node_folder() -> Path:
    """Return COURSE_LEASES, or otherwise a folder that all users of this machine share."""
    chosen = os.environ.get("COURSE_LEASES")
    if chosen:
        return Path(chosen)
    # Hubs give each user a separate /tmp, and cleaners empty it; /run/lock is common to all.
    for base in (Path("/run/lock"), Path(tempfile.gettempdir())):
        with suppress(OSError):
            if base.stat().st_mode & 0o1777 == 0o1777:
                return base / "course-node"
    return Path(tempfile.gettempdir()) / "course-node"


@contextmanager
def one_at_a_time(
    folder: Path, *, create: bool = True, patience: float = PATIENCE
) -> Iterator[bool]:
    """Lock the folder so that no other process reads or claims meanwhile. Yield False if the folder
    does not exist and `create` is False."""
    with _in_words(folder):
        there = _sound(folder)
        if create and not there:
            _make(folder)
            there = True
        handle = _locked(folder, patience) if there else None
    try:
        yield there
    finally:
        if handle is not None:
            os.close(handle)


def read_locked(path: Path, most: int) -> tuple[bytes, int] | None:
    """Return the content and owner of a file that a process has locked; None if it is unlocked."""
    handle = os.open(path, _SAFE)
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
    """Create a new file with a unique name, locked and readable for all users."""
    with _in_words(folder):
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


def _make(folder: Path) -> None:
    # Created elsewhere and moved, so other users never see it with restricted access, whatever the
    # umask. A file in it keeps a second notebook from moving its own folder onto it.
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (aside / "about.txt").write_text(_ABOUT)
        aside.chmod(0o1777)
        aside.rename(folder)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not _sound(folder):  # otherwise another process was first
            raise


def _sound(folder: Path) -> bool:
    """Return True if the folder exists; raise an error if a file or link is in its place."""
    try:
        mode = os.lstat(folder).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise Unusable(f"{folder} is a {'link' if stat.S_ISLNK(mode) else 'file'}, not a folder")
    if mode & 0o002 and not mode & stat.S_ISVTX:
        raise Unusable(f"in {folder} any user can remove others' files (`chmod 1777` corrects it)")
    return True


def _locked(folder: Path, patience: float) -> int:
    handle = os.open(folder, _SAFE | os.O_DIRECTORY)
    try:
        if locked(handle, patience):
            return handle
        raise Unusable(f"another process has held {folder} for {patience:g} s")
    except BaseException:
        os.close(handle)
        raise


@contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    """Turn an operating system error into an Unusable error that names the folder."""
    try:
        yield
    except OSError as error:
        raise Unusable(f"{folder}: {error.strerror or error}") from error
