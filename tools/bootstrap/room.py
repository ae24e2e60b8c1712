"""Room on the disk and leave to write, asked before anything is begun.

No lesson derives it; lesson 12 spends a disk on purpose.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from .say import Refusal, size


def free_bytes(folder: Path) -> int:
    """What this user may still write in `folder`."""
    return shutil.disk_usage(folder).free


def need_room(folder: Path, installed: float, *, downloads: float) -> None:
    """A Refusal unless `installed` bytes fit in `folder` and `downloads` where pip unpacks."""
    temporary = Path(tempfile.gettempdir())
    if os.stat(folder).st_dev == os.stat(temporary).st_dev:
        needs = [(folder, installed + downloads)]
    else:
        needs = [(folder, installed), (temporary, downloads)]
    for place, bytes_needed in needs:
        free = free_bytes(place)
        if free < bytes_needed:
            if place == temporary and len(needs) > 1:
                remedy = "free some space there, or TMPDIR=/a/folder/with/room make ..."
            else:
                remedy = "free some space, or clone the course to a larger disk"
            raise Refusal(
                f"{place} has {size(free)} free; this step needs about {size(bytes_needed)} there.",
                remedy,
            )


def need_leave(root: Path) -> None:
    """A Refusal unless files can be made in `root` (asked by making one: the only sure way)."""
    try:
        handle, name = tempfile.mkstemp(prefix=".course-may-write-", dir=str(root))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Refusal(
                f"{root} is full: not even an empty file fits ({error.strerror}).",
                "free some space, or clone the course to a larger disk",
            ) from None
        user = os.environ.get("USER") or f"user {os.getuid()}"
        raise Refusal(
            f"{root} cannot be written by {user} ({error.strerror}): no .venv can be made there.",
            "clone the course to a folder you can write to, or set COURSE_VENV to an environment "
            "that somebody has made for you",
        ) from None
    os.close(handle)
    os.unlink(name)
