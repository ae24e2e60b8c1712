"""Where a learner's workspace is, and what is said where it cannot be written.

A clone of one's own holds it as `work/`; a read-only one that many share leaves it to each home.
Lesson 00 is opened there.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from course_lib.classroom import progress
from course_lib.files import write_whole

VARIABLE, HOME = "COURSE_WORK", "course-work"
ELSEWHERE = f"{VARIABLE}=/another/folder make lab"
ROOM = 1_000_000  # bytes for the manifest, the locks and some progress
PATIENCE = 5.0  # seconds for another command that changes the same workspace
_OURS = ("notebooks", "exercises", "solutions", "course_lib", "tests", "tools", "docs", ".git")


class Refused(Exception):
    """Why it cannot be done: the cause with its path, then the remedy."""

    def __init__(self, cause: str, remedy: str):
        super().__init__(f"{cause}\nRemedy: {remedy}")


def chosen(root: Path) -> Path:
    """The workspace to open: COURSE_WORK, else `work/` in the course, else one in the home."""
    named = os.environ.get(VARIABLE, "").strip()
    work = root / "work"
    try:
        if named:
            return Path(os.path.abspath(Path(named).expanduser()))
        if os.access(root, os.W_OK) or (work.is_dir() and work.stat().st_uid == os.geteuid()):
            return work
        return Path.home() / HOME
    except RuntimeError as error:  # nobody knows where this user is at home
        raise Refused(f"There is no place for your lessons: {error}.", ELSEWHERE) from None


def current(root: Path) -> Path:
    """The workspace that is meant here: COURSE_WORK, else the one around this folder."""
    if os.environ.get(VARIABLE, "").strip():
        return chosen(root)
    around = progress.here()
    return around.path.parent if around else chosen(root)


def exists(work: Path) -> bool:
    """Whether a workspace has been made there."""
    return (work / progress.MARK).is_dir()


def make(work: Path, root: Path) -> None:
    """The folder and its mark; outside of the course it is readable for its owner alone."""
    inside = work.is_relative_to(root)
    if work == root or (inside and work.relative_to(root).parts[0] in _OURS):
        raise Refused(
            f"{VARIABLE}={work} lies in what the course itself consists of.",
            f"name a folder of its own for your copies: {ELSEWHERE}",
        )
    with told(work):
        work.mkdir(mode=0o777 if inside else 0o700, parents=True, exist_ok=True)
        (work / progress.MARK).mkdir(exist_ok=True)


@contextmanager
def told(work: Path, needed: int = 0) -> Iterator[None]:
    """Whatever keeps us from writing, in words. `needed`: bytes that were still to be written."""
    try:
        yield
    except OSError as error:
        at = error.filename2 or error.filename or work
        why = error.strerror or str(error)
        safe = "Nothing has been overwritten, and nothing is half-written."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = f"free {math.ceil((needed + ROOM) / 1e6)} MB there"
            raise Refused(f"{work} is full: {why}. {safe}", f"{free}, or {ELSEWHERE}") from None
        raise Refused(
            f"{os.fspath(at)} cannot be written ({why}). {safe}",
            f"make it writable for user {os.geteuid()}, or {ELSEWHERE}",
        ) from None


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """No other command changes the copies of this workspace meanwhile."""
    with told(work), open(work / progress.MARK / "change.lock", "a") as file:
        limit = time.monotonic() + PATIENCE
        while not lock(file):
            if time.monotonic() > limit:
                raise Refused(
                    f"Another command has been changing {work} for {PATIENCE:g} s.",
                    "wait until it has ended, then try again",
                )
            time.sleep(0.02)
        yield


def lock(file) -> bool:
    """Whether the lock on an open file is ours now; a disk that knows no locks says yes."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            raise
    return True


def layout_folder(work: Path) -> Path:
    """Where JupyterLab keeps which tabs are open."""
    return work / progress.MARK / "layout"


def command_folder(work: Path) -> Path:
    """A folder for the PATH in which `course` is this Python's `course`."""
    command = work / progress.MARK / "bin" / "course"
    with told(work):
        command.parent.mkdir(exist_ok=True)
        script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m course_lib.cli "$@"\n'
        write_whole(command, script)
        command.chmod(0o755)
    return command.parent
