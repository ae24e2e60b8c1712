"""The folder that all notebooks of a node share, and locks in it, safe among strangers.

Everybody may write there, so nothing in it is trusted: no link is followed, no file is opened that
is not a plain one, and every wait for a lock ends.
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

PATIENCE = 5.0  # seconds for the folder, which each notebook holds for milliseconds
_SAFE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not block
_ABOUT = "Who holds which GPUs, cores and memory of this machine: `course status --all` shows it.\n"


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
    """Lock the folder: nobody else looks or claims meanwhile. False: without `create`, there is no
    such folder."""
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
    """The content and the owner of a file that somebody holds; None where nobody does."""
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
    """A new file with a name of its own, locked and readable for everybody."""
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
    # Made aside and moved: whatever the umask, nobody ever sees it closed to others. With a file in
    # it, which keeps a second notebook from moving its own in this one's place.
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (aside / "about.txt").write_text(_ABOUT)
        aside.chmod(0o1777)
        aside.rename(folder)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not _sound(folder):  # else somebody was first
            raise


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
    """An error of the operating system, in words that name the folder."""
    try:
        yield
    except OSError as error:
        raise Unusable(f"{folder}: {error.strerror or error}") from error
