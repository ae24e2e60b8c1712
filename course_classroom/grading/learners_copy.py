"""A learner's copy of the course: what git tracks of it, without answers, tests and history.

It is written beside its place and put there in one step. `course handout` makes it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from course_classroom.grading import intact
from course_classroom.notebook import release
from course_classroom.workspace.handed_out import without_answers

# All that travels. What is not below one of these stays, and so does what is added one day.
GIVEN = ("course_lib", "course_classroom", "course_lessons", "notebooks", "exercises", "docs")
GIVEN += ("benchmarks", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", ".gitignore")
GIVEN += (".gitattributes", "Makefile", "tools/__init__.py", "tools/bootstrap", "tools/hashes.py")
GIVEN += ("pyproject.toml", "constraints.txt", "environment.yml")
MARK = "LEARNERS_COPY"  # by this file tools/bootstrap/ and the commands of authors know a copy
MARK_TEXT = """\
This is a learner's copy of the course{version}, made by `course handout`.
It holds the lessons, the exercises and the library; it has no solutions, no tests and no history.
Begin with `make lab`.
"""
PREFIX = ".course-handout-"  # of the folder beside, until it is whole
WHY_GIT = "; what is handed out is what git tracks"


class Refused(Exception):
    """Why no copy is made, and the remedy. Nothing is left of it."""


@dataclass(frozen=True)
class Copy:
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
        paths, version = tracked_files(root), _version(root)
        untracked = _untracked(root, GIVEN)
        _check_exercises(root, untracked)
        given = [path for path in paths if _travels(path)]
        mark = MARK_TEXT.format(version=f" ({version})" if version else "")
        size = _put(root, given, folder, mark)
    except OSError as error:
        at = os.fspath(error.filename or folder)
        raise Refused(f"{at}: {error.strerror} (nothing was left of the copy)") from None
    stayed = tuple(sorted({_top(path) for path in paths if not _travels(path)}))
    return Copy(str(folder), version, len(given) + 1, size, stayed, tuple(untracked))


def is_one(root: Path) -> bool:
    return (root / MARK).exists()


def _check_place(root: Path, folder: Path) -> None:
    if folder.is_relative_to(root):
        raise Refused(f"{folder} lies inside the course itself; name a folder outside of it")
    if not folder.parent.is_dir():
        raise Refused(f"there is no folder {folder.parent}; make it first")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} is there and is no empty folder; name another, or move it away")


def _check_clone(root: Path) -> None:
    top = _git(root, "rev-parse", "--show-toplevel", wrong=True)
    around = top.stdout.rstrip("\n")
    if top.returncode or Path(around).resolve() != root:
        where = f"it only lies in {around}" if around else _first(top.stderr)
        raise Refused(
            f"{root} is no clone of the course ({where}), and what is handed out is what git "
            "tracks, so that no private file travels; run this in a clone"
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


def tracked_files(root: Path) -> list[str]:
    return sorted(set(_git(root, "ls-files", "-z").stdout.split("\0")) - {""})


def _untracked(root: Path, below: Sequence[str]) -> list[str]:
    others = ("ls-files", "-z", "--others", "--exclude-standard", "--", *below)
    return sorted(set(_git(root, *others).stdout.split("\0")) - {""})


def _version(root: Path) -> str:
    """The commit by its tag or number, `-dirty` where files have changed since; or nothing."""
    return _git(root, "describe", "--tags", "--always", "--dirty", wrong=True).stdout.strip()


def _git(folder: Path, *words: str, wrong: bool = False) -> subprocess.CompletedProcess[str]:
    """git in that folder, whatever repository the environment speaks of; `wrong`: it may fail."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    kept["LC_ALL"] = "C"
    options = {"capture_output": True, "encoding": "utf-8", "errors": "surrogateescape"}
    try:
        done = subprocess.run(["git", *words], cwd=folder, env=kept, check=False, **options)
    except OSError as error:
        raise Refused(f"git cannot be run in {folder} ({error.strerror}){WHY_GIT}") from None
    if done.returncode and not wrong:
        raise Refused(f"git {words[0]} in {folder} failed ({_first(done.stderr)}){WHY_GIT}")
    return done


def _first(text: str) -> str:
    return (text.strip().splitlines() or ["no reason"])[0]
