"""Every workspace below a folder, for an instructor who looks at a room of learners.

What is searched is bounded: three levels, no links, and each place that cannot be read is named. No
lesson derives it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.classroom import progress


@dataclass
class Found:
    """Workspaces by the name of their learner, and what could not be looked at."""

    learners: list[tuple[str, Path]] = field(default_factory=list)
    unreadable: list[tuple[Path, str]] = field(default_factory=list)


def search(top: Path) -> Found:
    """The workspaces TOP/*, TOP/*/* and TOP/*/*/work; a workspace that TOP is itself as well."""
    found = Found()
    if _take(found, top.name, top):
        return found
    for person in _folders(top, found):
        if _take(found, person.name, person):
            continue
        for inner in _folders(person, found):
            # A clone of the course in somebody's home has its workspace one level further down.
            if not _take(found, person.name, inner):
                _take(found, person.name, inner / "work")
    found.learners.sort(key=lambda one: (one[0], str(one[1])))
    return found


def _take(found: Found, name: str, folder: Path) -> bool:
    """Note it if it is a workspace, or if it has the name of one and is closed."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return False
    except OSError:  # not there, or in a folder that is closed as a whole
        return False
    try:
        here = stat.S_ISDIR(os.lstat(folder / progress.MARK).st_mode)
    except OSError as error:
        if "work" in folder.name and not isinstance(error, FileNotFoundError):
            found.unreadable.append((folder, error.strerror or str(error)))
        return False
    if here:
        found.learners.append((name, folder))
    return here


def _folders(folder: Path, found: Found) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(
                e.name
                for e in entries
                if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")
            )
    except OSError as error:
        found.unreadable.append((folder, error.strerror or str(error)))
        return
    yield from (folder / name for name in names)
