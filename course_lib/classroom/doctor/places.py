"""Folders that the course writes to: temporary files, the ranks' sockets, the learner's work.

Each is tried by writing there, the only sure way to know. No lesson derives it.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from pathlib import Path

from course_lib.classroom.doctor.finding import Finding, size
from course_lib.files import sync_file

DISK_LEAST, DISK_COMFORT = 200e6, 2e9
PROBE = 1 << 20  # bytes; more than a program of three lines needs, and less than anything else
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
FREE_SOME = "free some space there, or TMPDIR=/a/folder/you/can/write/to"


def temporary(folder: Path | None = None) -> list[Finding]:
    """Whether a file can be written where Python puts temporary ones."""
    name = "temporary files"
    full = no_room([chosen()] if folder is None else [folder])
    if full:
        return [Finding(name, "bad", full, FREE_SOME)]
    try:
        folder = Path(tempfile.gettempdir()) if folder is None else folder
        _write(folder)
    except OSError as error:
        told = f"{folder or 'no temporary folder'} cannot be written ({error.strerror})"
        return [Finding(name, "bad", told, FREE_SOME)]
    return [Finding(name, "ok", f"{folder} can be written")]


def chosen() -> Path:
    """The folder that programs are told to put temporary files into. Python passes over a full one
    without a word and takes the next; a compiler does not."""
    named = next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), "")
    return Path(named or "/tmp")


def no_room(folders: list[Path] | None = None) -> str:
    """Which of the folders is full, in words; those for temporary files by default."""
    for folder in [chosen(), *_pythons_own()] if folders is None else folders:
        try:
            _write(folder)
        except OSError as error:
            if error.errno in NO_ROOM:
                free = size(shutil.disk_usage(folder).free)
                return f"{folder} is full: {free} free, not enough for a file of {size(PROBE)}"
    return ""


def _pythons_own() -> list[Path]:
    try:
        return [Path(tempfile.gettempdir())]
    except FileNotFoundError:  # nothing can be written anywhere
        return []


def _write(folder: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(bytes(PROBE))
        sync_file(file)


def runtime() -> list[Finding]:
    """Whether the ranks' sockets have a place: private, writable, with a path short enough."""
    from course_lib.classroom import runs

    name = "the ranks' sockets"
    remedy = "set COURSE_RUNTIME_DIR to a short path on a local disk that you can write to"
    try:
        folder = runs.new_folder()
    except (RuntimeError, OSError) as error:
        return [Finding(name, "bad", str(error), remedy)]
    try:
        with socket.socket(socket.AF_UNIX) as meeting:
            meeting.bind(str(folder / "rank-999-ipc-5"))  # the longest name that a rank uses
            meeting.listen()
    except OSError as error:
        why = error.strerror or error
        told = f"no socket can be made in {folder.parent} ({why}); some network disks have none"
        return [Finding(name, "bad", told, remedy)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [Finding(name, "ok", f"{folder.parent}, paths of {len(str(folder))} of 85 characters")]


def disk(root: Path, temporary: Path | None = None) -> list[Finding]:
    """Free space where the learner works and where temporary files go."""
    temporary = Path(tempfile.gettempdir()) if temporary is None else temporary
    places = {"disk (the course)": root, "disk (temporary files)": temporary}
    if os.stat(root).st_dev == os.stat(temporary).st_dev:
        places = {"disk": root}
    return [_room(name, folder, shutil.disk_usage(folder).free) for name, folder in places.items()]


def _room(name: str, folder: Path, free: int) -> Finding:
    told = f"{size(free)} free in {folder}"
    remedy = "free some space there (`du -xh --max-depth=1 | sort -h` shows what takes it)"
    if free < DISK_LEAST:
        return Finding(name, "bad", f"{told}; a lesson's files need {size(DISK_LEAST)}", remedy)
    if free < DISK_COMFORT:
        more = f"checkpoints and NVMe offload want {size(DISK_COMFORT)}"
        return Finding(name, "note", f"{told}; {more}", remedy)
    return Finding(name, "ok", told)
