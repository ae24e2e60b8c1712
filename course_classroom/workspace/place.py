"""The location of a learner's workspace, its locks, and the messages if it is not writable.

Your own clone contains it as `work/`, and with a shared read-only clone it is in each user's home.
A lock belongs to its process, so a killed process leaves nothing to clean up.
"""

from __future__ import annotations

import errno
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from course_classroom.progress import log as progress
from course_lib.files import locked, write_whole

VARIABLE, HOME = "COURSE_WORK", "course-work"
ELSEWHERE = f"{VARIABLE}=/another/folder make lab"
ROOM = 1_000_000  # bytes for the manifest, the locks and some progress
PATIENCE = 5.0  # seconds to wait for another command that changes the same workspace
_OURS = ("notebooks", "exercises", "solutions", "course_lib", "course_classroom", "course_lessons")
_OURS += ("tests", "tools", "docs", ".git")


class Refused(Exception):
    """An error with a cause, which names its path, and a remedy."""

    def __init__(self, cause: str, remedy: str):
        super().__init__(f"{cause}\nRemedy: {remedy}")


def chosen(root: Path) -> Path:
    """Return the workspace to open: COURSE_WORK, or `work/` in the course, or one in the home."""
    named = os.environ.get(VARIABLE, "").strip()
    work = root / "work"
    try:
        if named:
            return Path(os.path.abspath(Path(named).expanduser()))
        if os.access(root, os.W_OK) or (work.is_dir() and work.stat().st_uid == os.geteuid()):
            return work
        return Path.home() / HOME
    except RuntimeError as error:  # this user has no home folder
        raise Refused(f"There is no place for your lessons: {error}.", ELSEWHERE) from None


def current(root: Path) -> Path:
    """Return the workspace of this folder: COURSE_WORK, a parent, or the default workspace."""
    if os.environ.get(VARIABLE, "").strip():
        return chosen(root)
    around = progress.here()
    return around.path.parent if around else chosen(root)


def make(work: Path, root: Path) -> None:
    """Create the workspace and its mark; outside the course, only its owner can read it."""
    inside = work.is_relative_to(root)
    if work == root or (inside and work.relative_to(root).parts[0] in _OURS):
        raise Refused(
            f"{VARIABLE}={work} is inside the course's own files.",
            f"choose a separate folder for your copies: {ELSEWHERE}",
        )
    with told(work):
        work.mkdir(mode=0o777 if inside else 0o700, parents=True, exist_ok=True)
        (work / progress.MARK).mkdir(exist_ok=True)


@contextmanager
def told(work: Path, needed: int = 0) -> Iterator[None]:
    """Turn write errors into Refused errors. `needed` is the number of bytes still to write."""
    try:
        yield
    except OSError as error:
        at = error.filename2 or error.filename or work
        why = error.strerror or str(error)
        safe = "Nothing was overwritten, and no file is incomplete."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = f"free {math.ceil((needed + ROOM) / 1e6)} MB there"
            raise Refused(f"{work} is full: {why}. {safe}", f"{free}, or {ELSEWHERE}") from None
        raise Refused(
            f"{os.fspath(at)} cannot be written ({why}). {safe}",
            f"make it writable for user {os.geteuid()}, or {ELSEWHERE}",
        ) from None


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Lock this workspace against changes by other commands inside the `with` block."""
    with told(work), open(work / progress.MARK / "change.lock", "a") as file:
        if not locked(file, PATIENCE):
            raise Refused(
                f"Another command has been changing {work} for {PATIENCE:g} s.",
                "wait until it has ended, then try again",
            )
        yield


@contextmanager
def only_lab(work: Path) -> Iterator[None]:
    """Reserve the workspace for one JupyterLab, since two servers would overwrite answers."""
    with told(work):
        file = open(work / progress.MARK / "lab.lock", "a+", encoding="utf-8")  # noqa: SIM115
    with file:
        if not locked(file):
            raise _taken(work, file)
        with suppress(OSError):  # on a full disk the lock still holds
            file.truncate(0)
            file.write(f"since {datetime.now():%Y-%m-%d %H:%M}, process {os.getpid()}")
            file.flush()
        yield
        file.truncate(0)


def _taken(work: Path, file) -> Refused:
    file.seek(0)
    about = file.read(300).strip() or "just starting"
    here = Path(sys.executable).parent / "jupyter"
    jupyter = "jupyter" if shutil.which("jupyter") or not here.exists() else str(here)
    return Refused(
        f"A JupyterLab is already open on {work} ({about}). Two would overwrite each other.",
        f"if it is yours, continue there: `{jupyter} server list` shows its address with the "
        "token. If another person uses the same user name, choose your own folder: "
        f"{VARIABLE}=~/work-NAME make lab",
    )


def command_folder(work: Path) -> Path:
    """Return a folder for the PATH that has a `course` command which runs this Python."""
    command = work / progress.MARK / "bin" / "course"
    with told(work):
        command.parent.mkdir(exist_ok=True)
        script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m course_classroom.cli "$@"\n'
        write_whole(command, script)
        command.chmod(0o755)
    return command.parent
