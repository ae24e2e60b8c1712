"""Submissions in a folder: nbgrader's layout, one folder per student, or one file per student.

This module opens no file and follows no link, because a link could lead to someone else's work.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_NOT_WORK = {"__pycache__", "timestamp.txt", "feedback"}
_DEEPEST = 3  # levels searched below a student's folder


@dataclass(frozen=True)
class Submission:
    """A notebook that a student handed in, or a student's folder without a notebook."""

    student: str
    path: Path  # the notebook, or a folder without one
    shown: str  # the path as written into the results
    lesson: str = ""  # the folder that names a lesson in nbgrader's layout
    trouble: str = ""  # reason why there is nothing to read


def find(folder: Path) -> tuple[list[Submission], list[str]]:
    """Return every submission below `folder` by student, and descriptions of the ignored files."""
    found: list[Submission] = []
    aside: list[str] = []
    for entry in _entries(folder, aside):
        if entry.is_dir():
            found.extend(_of_student(entry, folder, aside))
        elif entry.suffix == ".ipynb":
            found.append(Submission(_text(entry.stem), entry, _text(entry.name)))
        else:
            aside.append(f"{_text(entry.name)} is not a notebook and is in no student's folder")
    return sorted(found, key=lambda one: (one.student.casefold(), one.shown)), aside


def _of_student(home: Path, folder: Path, aside: list[str]) -> list[Submission]:
    student = _text(home.name)
    notebooks, others = [], []
    for path in _files(home, aside, _DEEPEST):
        (notebooks if path.suffix == ".ipynb" else others).append(path)
    if not notebooks:
        names = ", ".join(_text(path.name) for path in others[:3])
        said = f"no notebook, only {names}" if others else "the folder is empty"
        kind = "not a notebook" if others else "empty"
        return [Submission(student, home, _shown(home, folder), trouble=f"{kind}: {said}")]
    return [
        Submission(
            student,
            path,
            _shown(path, folder),
            lesson=path.relative_to(home).parts[0] if path.parent != home else "",
        )
        for path in notebooks
    ]


def _files(folder: Path, aside: list[str], deeper: int) -> list[Path]:
    found = []
    for entry in _entries(folder, aside):
        if not entry.is_dir():
            found.append(entry)
        elif deeper:
            found.extend(_files(entry, aside, deeper - 1))
        else:
            aside.append(f"{_text(str(entry))} is too deep to be searched")
    return found


def _entries(folder: Path, aside: list[str]) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        aside.append(f"{_text(str(folder))} cannot be read ({error.strerror})")
        return []
    kept = []
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _NOT_WORK:
            continue
        if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
            aside.append(f"{_text(str(entry))} is a link or not a regular file, so it was ignored")
            continue
        kept.append(entry)
    return kept


def _shown(path: Path, folder: Path) -> str:
    return _text(path.relative_to(folder).as_posix())


def _text(name: str) -> str:
    """Return a file's name, whatever its bytes, as text that can be written anywhere."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
