"""One learner's results in each lesson as plain data, and the results of a room's learners.

A progress file can contain anything, but a bad file affects only its learner's row. Lesson 00
refers to `course status`.
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
MOST = 50_000_000  # bytes of progress; a course creates a few thousand lines


class Unreadable(Exception):
    """An error that states why a learner's progress cannot be read."""


class Listed(NamedTuple):
    """A row of the table at a lesson's end, which is read because the checks would load torch."""

    name: str
    points: int


def overview(work: Path, root: Path) -> dict:
    """Return a learner's results for each lesson: opened or not, points, hints, predictions."""
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
    """Read the progress file of any workspace; lines without a valid event count as damaged."""
    path = work / FILE
    try:
        found = os.lstat(path)
        # A learner's folder must not make readers wait at a pipe or lead them to other files.
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable(f"{FILE} is not a regular file")
        if found.st_size > MOST:
            raise Unreadable(f"{FILE} is larger than {MOST // 1_000_000} MB")
        return Progress(work).read()
    except FileNotFoundError:
        return Log()
    except OSError as error:
        raise Unreadable(f"{FILE}: {error.strerror or error}") from None
    except RecursionError:
        raise Unreadable(f"{FILE} is not a list of events") from None


def room(top: Path, root: Path) -> dict:
    """Return the learners below a folder with their points, and the unreadable folders."""
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
    """Return the workspaces TOP, TOP/*, TOP/*/* and TOP/*/*/work by learner, and the unreadable
    folders with reasons, without following links."""
    closed: list[tuple[Path, str]] = []
    if _is_workspace(top, closed):
        return [(top.name, top)], closed
    found = []
    for person in _folders(top, closed):
        if _is_workspace(person, closed):
            found.append((person.name, person))
            continue
        for inner in _folders(person, closed):
            # A clone of the course in a home has its workspace one level further down.
            for place in (inner, inner / "work"):
                if _is_workspace(place, closed):
                    found.append((person.name, place))
                    break
    return sorted(found), closed


def _is_workspace(folder: Path, closed: list[tuple[Path, str]]) -> bool:
    """Return True for a workspace; add an unreadable folder with "work" in its name to `closed`."""
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
