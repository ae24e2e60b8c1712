"""Where a learner stands in each lesson, as plain data, and a whole room of learners at once.

A progress file is its owner's: whatever stands in it costs that learner's row and no other. Lesson
00 points to `course status`.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from course_classroom.progress.log import FILE, MARK, Log, Progress
from course_classroom.progress.points import predictions, standing
from course_classroom.workspace.handed_out import Item, items, title
from course_classroom.workspace.manifest import Manifest

_ROW = re.compile(r"\]\(\.\./exercises/\w+/(\w+)\.ipynb\) \| (\d+) \| ")
MOST = 50_000_000  # bytes of progress; a course leaves some thousand lines


class Unreadable(Exception):
    """Why a learner's progress cannot be read, in words."""


class Listed(NamedTuple):
    """A row of the table at a lesson's end. The checks know it too, but they load torch."""

    name: str
    points: int


def overview(work: Path, root: Path) -> dict:
    """Each lesson of the course with what its learner did: opened, points, hints, predictions."""
    log = read(work)
    manifest = Manifest.read(work)
    notebooks = {item.lesson: item for item in items(root) if not item.is_exercise}
    told = [_lesson(notebooks[name], log, manifest, root) for name in sorted(notebooks)]
    return {
        "workspace": str(work),
        "lessons": told,
        "last": max((e.get("at", "") for e in log.events), default=""),
        "damaged_lines": log.damaged,
    }


def _lesson(item: Item, log: Log, manifest: Manifest, root: Path) -> dict:
    name = item.lesson
    found = _ROW.findall((root / item.path).read_text(encoding="utf-8"))
    rows = standing(log, {name: [Listed(exercise, int(points)) for exercise, points in found]})
    mine = Log([e for e in log.events if str(e.get("question", "")).startswith(f"{name}.")])
    made, compared = predictions(mine)
    tried = any(row.last or row.hints for row in rows) or bool(mine.events)
    return {
        "lesson": name,
        "title": title(root, item),
        "notebook": item.path,
        "opened": tried or manifest.opened(item.path),
        "points": sum(row.points for row in rows),
        "of": sum(row.of for row in rows),
        "exercises": [{k: v for k, v in row._asdict().items() if k != "lesson"} for row in rows],
        "predictions": {"made": made, "compared": compared},
    }


def read(work: Path) -> Log:
    """The progress file of anybody's workspace; lines that say nothing sensible are damaged."""
    path = work / FILE
    try:
        found = os.lstat(path)
        # Nobody waits at a pipe, and nobody is led to another file, because of a learner's folder.
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable(f"{FILE} is no plain file")
        if found.st_size > MOST:
            raise Unreadable(f"{FILE} is larger than {MOST // 1_000_000} MB")
        return Progress(work).read()
    except FileNotFoundError:
        return Log()
    except OSError as error:
        raise Unreadable(f"{FILE}: {error.strerror or error}") from None
    except RecursionError:
        raise Unreadable(f"{FILE} is no list of events") from None


def room(top: Path, root: Path) -> dict:
    """Everybody below a folder: points by lesson, and who could not be read, with the reason."""
    found, closed = search(top)
    learners = []
    for name, work in found:
        try:
            learners.append({"name": name, **overview(work, root)})
        except (Unreadable, OSError) as error:
            closed.append((work, getattr(error, "strerror", None) or str(error)))
    unreadable = [{"path": str(path), "reason": reason} for path, reason in closed]
    return {"learners": learners, "unreadable": unreadable}


def search(top: Path) -> tuple[list[tuple[str, Path]], list[tuple[Path, str]]]:
    """The workspaces TOP, TOP/*, TOP/*/* and TOP/*/*/work by the name of their learner, and the
    folders that cannot be looked at, with the reason. No link is followed."""
    closed: list[tuple[Path, str]] = []
    if _is_workspace(top, closed):
        return [(top.name, top)], closed
    found = []
    for person in _folders(top, closed):
        if _is_workspace(person, closed):
            found.append((person.name, person))
            continue
        for inner in _folders(person, closed):
            # A clone of the course in somebody's home has its workspace one level further down.
            for place in (inner, inner / "work"):
                if _is_workspace(place, closed):
                    found.append((person.name, place))
                    break
    return sorted(found), closed


def _is_workspace(folder: Path, closed: list[tuple[Path, str]]) -> bool:
    """Whether it is one; `closed` is told of what has the name of one and cannot be looked into."""
    if os.path.islink(folder) or not os.path.isdir(folder):
        return False
    try:
        return stat.S_ISDIR(os.lstat(folder / MARK).st_mode)
    except OSError as error:
        if "work" in folder.name and not isinstance(error, FileNotFoundError):
            closed.append((folder, error.strerror or str(error)))
        return False


def _folders(folder: Path, closed: list[tuple[Path, str]]) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            inner = [Path(e) for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError as error:
        closed.append((folder, error.strerror or str(error)))
        return []
    return sorted(path for path in inner if not path.name.startswith("."))
