"""`course reset`: a fresh copy replaces the old one, which moves to `backups/` first.

A backup is read back before the original is replaced. Lesson 00 mentions the command.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course_classroom.workspace import place
from course_classroom.workspace.copying import write
from course_classroom.workspace.handed_out import Item, content, items, version
from course_classroom.workspace.manifest import Manifest

BACKUPS = "backups"


class Unknown(Exception):
    """An error for a name that matches nothing; the text lists the existing names."""


@dataclass(frozen=True)
class Renewed:
    """The result for one notebook; `backup` is the old file's path in the workspace."""

    path: str
    backup: str = ""
    was: str = "there"  # or "missing", or "the same"


def find(what: str, root: Path, work: Path) -> list[Item]:
    """Return the notebooks for `what`: a lesson, an appendix, an exercise, or a path."""
    there = items(root)
    number = what.zfill(2) if what.isdigit() else what.upper()  # for an appendix its letter
    path = Path(os.path.abspath(work / what))
    found = (
        [item for item in there if number in (item.lesson, item.letter)]
        or [item for item in there if item.name == what]
        or [item for item in there if work / item.path == path]
    )
    if not found:
        raise Unknown(f"There is no {what} to reset. You can reset:\n{as_list(there)}")
    return found


def as_list(there: Sequence[Item]) -> str:
    lines = []
    for lesson in dict.fromkeys(item.lesson for item in there):
        mine = [item for item in there if item.lesson == lesson]
        paths = [item.path for item in mine if not item.is_exercise]
        exercises = ", ".join(item.name for item in mine if item.is_exercise)
        lines.append(f"  {lesson}  {', '.join([*paths, *filter(None, [exercises])])}")
    return "\n".join(lines)


def renew(chosen: Sequence[Item], root: Path, work: Path, now: datetime) -> list[Renewed]:
    """Replace each notebook with the course's version, and keep every old file."""
    place.make(work, root)
    needed = sum((root / item.path).stat().st_size for item in chosen)
    files = [work / item.path for item in chosen]
    needed += sum(file.stat().st_size for file in files if file.exists())
    with place.alone(work), place.told(work, needed):
        manifest = Manifest.read(work)
        return _renew_each(chosen, root, work, now, manifest)


def _renew_each(
    chosen: Sequence[Item], root: Path, work: Path, now: datetime, manifest: Manifest
) -> list[Renewed]:
    backups: Path | None = None
    done = []
    try:
        for item in chosen:
            new, file = content(root, item), work / item.path
            old = file.read_bytes() if os.path.lexists(file) else None
            kept = ""
            if old is not None and old != new:
                backups = backups or _new_folder(work / BACKUPS, now)
                _keep(old, backups / item.path)
                kept = (backups / item.path).relative_to(work).as_posix()
            if old != new:
                write(file, new)
            manifest.copies[item.path] = version(new)
            manifest.write()
            was = "missing" if old is None else "the same" if old == new else "there"
            done.append(Renewed(item.path, kept, was))
    except BaseException:
        if backups is not None:
            _drop_empty(backups)
        raise
    return done


def _keep(data: bytes, backup: Path) -> None:
    write(backup, data)
    if backup.read_bytes() != data:
        raise OSError(0, "a backup differed when it was read back", str(backup))


def _new_folder(backups: Path, now: datetime) -> Path:
    """Create a new, unused folder named after this moment."""
    backups.mkdir(exist_ok=True)
    stamp, number = now.strftime("%Y-%m-%d_%H-%M-%S"), 1
    while True:
        folder = backups / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def _drop_empty(folder: Path) -> None:
    for one in [*sorted(folder.rglob("*"), reverse=True), folder, folder.parent]:
        with suppress(OSError):  # it is not empty, so it stays
            one.rmdir()
