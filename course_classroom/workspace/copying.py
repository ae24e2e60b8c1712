"""Opening a workspace: missing files are copied, existing files stay, and both are reported.

Therefore lesson 00 can promise its readers that their copy is their own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from course_classroom.workspace import place
from course_classroom.workspace.handed_out import Item, capital, content, items, version
from course_classroom.workspace.manifest import Manifest
from course_lib.files import write_whole

# Next to the lessons, for reading.
LINKED = ("course_lib", "course_classroom", "course_lessons", "docs")


@dataclass
class News:
    work: Path
    first: bool = False
    copied: list[Item] = field(default_factory=list)  # new, or deleted by the learner
    newer: list[Item] = field(default_factory=list)  # changed in the course since they were copied
    gone: list[str] = field(default_factory=list)  # no longer part of the course
    trouble: str = ""  # with the manifest

    def lines(self) -> list[str]:
        if self.first:
            return [
                f"Your own copies are in {self.work}: {_counted(self.copied)}. Updates never "
                "overwrite them."
            ]
        said = []
        if self.trouble:
            said.append(
                f"The files copied into {self.work} are unknown (its manifest is {self.trouble}), "
                "so every file there counts as yours and none is overwritten."
            )
        if self.copied:
            each = ", ".join(f"{item} ({item.path})" for item in self.copied)
            said.append(f"Missing in {self.work} and now copied again, as handed out: {each}.")
        said += [
            f"{capital(str(item))} has changed since your copy was made; yours is unchanged. "
            f"`course reset {item.short}` gets the new one and keeps yours in backups/."
            for item in self.newer
        ]
        said += [f"{path} is no longer part of the course; yours stays." for path in self.gone]
        return said


def open_up(root: Path, work: Path) -> News:
    """Copy missing files into the workspace without changing any existing file."""
    there = items(root)
    if not there:
        raise place.Refused(
            f"There are no lessons in {root}.", "start from a full copy of the course"
        )
    place.make(work, root)
    with place.alone(work):
        news = _copy_missing(root, work, there)
        for name in LINKED:
            _link(root, work, name)
    return news


def _copy_missing(root: Path, work: Path, there: Sequence[Item]) -> News:
    manifest = Manifest.read(work)
    missing = [item for item in there if not os.path.lexists(work / item.path)]
    news = News(work, first=bool(manifest.trouble) and len(missing) == len(there))
    news.trouble = "" if news.first else manifest.trouble
    before = dict(manifest.copies)
    needed = sum((root / item.path).stat().st_size for item in missing)
    with place.told(work, needed):
        for item in there:
            _look_at(item, root, manifest, news, missing)
        news.gone = [path for path in before if Item(path) not in there]
        for path in news.gone:
            del manifest.copies[path]
        if manifest.copies != before or manifest.trouble:
            manifest.write()
    return news


def _look_at(item: Item, root: Path, manifest: Manifest, news: News, missing: list[Item]) -> None:
    """Copy an item, report a newer version, or leave it unchanged."""
    data = content(root, item)
    ours, copied = version(data), manifest.copies.get(item.path)
    if item in missing:
        write(news.work / item.path, data)
        manifest.copies[item.path] = ours
        news.copied.append(item)
    elif copied is None:
        # Of unknown origin: if it equals today's version, that version was copied.
        with suppress(OSError):
            if (news.work / item.path).read_bytes() == data:
                manifest.copies[item.path] = ours
    elif copied.cells != ours.cells:
        if version((news.work / item.path).read_bytes()).cells == ours.cells:
            manifest.copies[item.path] = ours  # updated by hand
            return
        news.newer.append(item)


def write(path: Path, data: bytes) -> None:
    """Write a file of the workspace completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)


def _link(root: Path, work: Path, name: str) -> None:
    """Link a folder of the course next to the lessons; correct a link with a wrong target."""
    link, target = work / name, root / name
    if work.is_relative_to(root):  # then both can be moved together
        target = Path(os.path.relpath(target, work))
    if link.is_symlink():
        if Path(os.readlink(link)) == target:
            return
        link.unlink()
    if (root / name).is_dir() and not link.exists():  # the learner's own folder stays
        with suppress(OSError):  # some disks do not support links; the lessons do not need them
            link.symlink_to(target)


def _counted(found: Sequence[Item]) -> str:
    exercises = sum(item.is_exercise for item in found)
    appendices = sum(item.is_appendix for item in found)
    lessons = len(found) - exercises - appendices
    between = f", {appendices} appendi{'x' if appendices == 1 else 'ces'}" if appendices else ""
    return (
        f"{lessons} lesson{'s' * (lessons != 1)}{between} and "
        f"{exercises} exercise{'s' * (exercises != 1)}"
    )
