"""A learner's copy of the course: what git tracks of it, without answers, tests and history.

It is written beside its place and put there in one step. `course handout` makes it; no lesson
derives it.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from course_lib.classroom import release, tracked
from course_lib.classroom.grading import intact
from course_lib.classroom.workspace.predictions import without_answers

# All that travels. What is not below one of these stays, and so does what is added one day.
GIVEN = (
    "course_lib", "notebooks", "exercises", "docs", "benchmarks",
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", ".gitignore", ".gitattributes",
    "Makefile", "tools/__init__.py", "tools/bootstrap", "tools/hashes.py",
    "pyproject.toml", "constraints.txt", "environment.yml",
)  # fmt: skip
MARK = "LEARNERS_COPY"  # by this file tools/bootstrap/ and the commands of authors know a copy
MARK_TEXT = """\
This is a learner's copy of the course{version}, made by `course handout`.
It holds the lessons, the exercises and the library; it has no solutions, no tests and no history.
Begin with `make lab`.
"""
PREFIX = ".course-handout-"  # of the folder beside, until it is whole


class Refused(Exception):
    """Why no copy is made, and the remedy. Nothing is left of it."""


@dataclass(frozen=True)
class Copy:
    """A learner's copy that has been made."""

    folder: str
    version: str  # the commit, with `-dirty` where files have been changed since
    files: int
    size: int  # bytes
    stayed: tuple[str, ...]  # tracked folders and files that are not in it
    untracked: tuple[str, ...]  # what would be in it, if git tracked it


def make(root: Path, folder: Path) -> Copy:
    """The copy of the course at `root`, as `folder`: whole; or Refused, and nothing."""
    root, folder = root.resolve(), folder.resolve()
    try:
        _check_place(root, folder)
        _check_clone(root)
        _check_history(root, folder.parent)
        paths, version = tracked.files(root), tracked.version(root)
        untracked = tracked.untracked(root, GIVEN)
        _check_exercises(root, untracked)
        given = [path for path in paths if _travels(path)]
        mark = MARK_TEXT.format(version=f" ({version})" if version else "")
        size = _put(root, given, folder, mark)
    except tracked.NoGit as error:
        raise Refused(f"{error}; what is handed out is what git tracks") from None
    except OSError as error:
        raise Refused(_in_words(error, folder)) from None
    stayed = tuple(sorted({_top(path) for path in paths if not _travels(path)}))
    return Copy(str(folder), version, len(given) + 1, size, stayed, tuple(untracked))


def is_one(root: Path) -> bool:
    """Whether this is a learner's copy."""
    return (root / MARK).exists()


def _check_place(root: Path, folder: Path) -> None:
    if folder.is_relative_to(root):
        raise Refused(f"{folder} lies inside the course itself; name a folder outside of it")
    if not folder.parent.is_dir():
        raise Refused(f"there is no folder {folder.parent}; make it first")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} is there and is no empty folder; name another, or move it away")


def _check_clone(root: Path) -> None:
    around = tracked.top(root)
    if around is None or around.resolve() != root:
        where = f"it only lies in {around}" if around else "there is no .git"
        raise Refused(
            f"{root} is no clone of the course ({where}), and what is handed out is what git "
            "tracks, so that no private file travels; run this in a clone"
        )


def _check_history(root: Path, parent: Path) -> None:
    """Refuse a place in another clone of the course: there git would show the answers."""
    around = tracked.top(parent)
    if around is not None and tracked.knows(parent, tracked.objects(root, release.SOLUTIONS)):
        raise Refused(
            f"{parent} lies in {around}, a git repository that holds {release.SOLUTIONS}/, so "
            "`git show` would give the answers away; name a folder outside of it"
        )


def _check_exercises(root: Path, untracked: Sequence[str]) -> None:
    """Each has to be there, tracked and blank; beside solutions/ also what they give today."""
    try:
        intact.intact(root)
        differences = release.check(root) if (root / release.SOLUTIONS).is_dir() else []
    except (intact.Unfit, release.BadSolution, release.NoSolutions) as error:
        raise Refused(str(error)) from None
    differences += [
        f"{path} is not tracked: run `git add`"
        for path in untracked
        if path.startswith(f"{release.EXERCISES}/")
    ]
    if differences:
        more = f" (and {len(differences) - 1} more)" if differences[1:] else ""
        raise Refused(f"{differences[0]}{more}")


def _travels(path: str) -> bool:
    return any(PurePosixPath(path).is_relative_to(given) for given in GIVEN)


def _top(path: str) -> str:
    """What stays, as far down as a person wants to read: `solutions/`, `tools/pins.py`."""
    parts = PurePosixPath(path).parts
    deep = 2 if any(given.startswith(f"{parts[0]}/") for given in GIVEN) else 1
    return "/".join(parts[:deep]) + ("/" if len(parts) > deep else "")


def _put(root: Path, given: Sequence[str], folder: Path, mark: str) -> int:
    """Write all of it beside its place, then put it there; the bytes that were written."""
    beside = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder.parent))
    try:
        for path in given:
            _copy(root / path, beside / path)
        (beside / MARK).write_text(mark, encoding="utf-8")
        mask = os.umask(0)
        os.umask(mask)
        beside.chmod(0o777 & ~mask)
        size = sum(path.stat().st_size for path in beside.rglob("*") if path.is_file())
        os.rename(beside, folder)  # onto an empty folder, too
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(beside)
        raise
    return size


def _copy(source: Path, target: Path) -> None:
    if source.is_symlink():
        raise Refused(f"{source} is a link, and what it leads to may be private; put a file there")
    if not source.is_file():
        raise Refused(f"{source} is tracked by git and is not there; `git restore` brings it back")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    if source.suffix == ".ipynb":
        target.write_bytes(without_answers(source.read_bytes()))


def _in_words(error: OSError, folder: Path) -> str:
    at = error.filename or folder
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{folder.parent} is full; free some space there (nothing was left of the copy)"
    return f"{os.fspath(at)}: {error.strerror} (nothing was left of the copy)"
