"""Where a learner stands in each lesson, as plain data, and a whole room of learners at once.

A progress file is its owner's: whatever stands in it costs that learner's row and no other. Lesson
00 points to `course status`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from course_lib.classroom.progress import FILE, Log, Progress
from course_lib.classroom.standing import Exercise, predictions, standing
from course_lib.classroom.workspace.handed_out import Item, items, title
from course_lib.classroom.workspace.manifest import Manifest
from course_lib.classroom.workspace.search import search

Lessons = Mapping[str, Iterable[Exercise]]
MOST = 50_000_000  # bytes of progress; a course leaves some thousand lines


class Unreadable(Exception):
    """Why a learner's progress cannot be read, in words."""


def overview(work: Path, root: Path, lessons: Lessons) -> dict:
    """Each lesson of the course with what its learner did: opened, points, hints, predictions."""
    log = read(work)
    manifest = Manifest.read(work)
    notebooks = {item.lesson: item for item in items(root) if not item.is_exercise}
    told = [_lesson(notebooks[name], log, manifest, root, lessons) for name in sorted(notebooks)]
    return {
        "workspace": str(work),
        "lessons": told,
        "last": max((e.get("at", "") for e in log.events), default=""),
        "damaged_lines": log.damaged,
    }


def _lesson(item: Item, log: Log, manifest: Manifest, root: Path, lessons: Lessons) -> dict:
    name = item.lesson
    rows = standing(log, {name: lessons.get(name, ())})
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
        "exercises": [
            {
                "exercise": row.exercise,
                "outcome": row.outcome,
                "points": row.points,
                "of": row.of,
                "hints": row.hints,
                "since": row.since,
                "last": row.last,
                "last_outcome": row.last_outcome,
            }
            for row in rows
        ],
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


def room(top: Path, root: Path, lessons: Lessons) -> dict:
    """Everybody below a folder: points by lesson, and who could not be read, with the reason."""
    found = search(top)
    learners = []
    unreadable = [{"path": str(path), "reason": reason} for path, reason in found.unreadable]
    for name, work in found.learners:
        try:
            learners.append({"name": name, **overview(work, root, lessons)})
        except Unreadable as why:
            unreadable.append({"path": str(work), "reason": str(why)})
        except OSError as error:
            unreadable.append({"path": str(work), "reason": error.strerror or str(error)})
    return {"learners": learners, "unreadable": unreadable}
