"""A learner's copy of the course: the files tracked by git, without answers, tests or history.

It is written next to its destination and moved there in one step. `course handout` makes it.
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

# Everything that is copied. Anything else stays behind, including folders that are added later.
GIVEN = ("course_lib", "course_classroom", "course_lessons", "notebooks", "exercises", "docs")
GIVEN += ("benchmarks", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff")
GIVEN += (".gitattributes", ".gitignore", "Makefile", "tools/__init__.py", "tools/bootstrap")
GIVEN += ("tools/hashes.py", "pyproject.toml", "constraints.txt", "environment.yml")
MARK = "LEARNERS_COPY"  # tools/bootstrap/ and the authors' commands recognise a copy by this file
MARK_TEXT = """\
This is a learner's copy of the course{version}, made by `course handout`.
It holds the lessons, the exercises and the library; it has no solutions, no tests and no history.
Begin with `make lab`.
"""
PREFIX = ".course-handout-"  # of the temporary folder next to it, until the copy is complete
WHY_GIT = "; only files that git tracks are handed out"


class Refused(Exception):
    """An error that states why no copy was made, and the remedy. No partial copy remains."""


@dataclass(frozen=True)
class Copy:
    folder: str
    version: str  # the commit, with `-dirty` if files have changed since
    files: int
    size: int  # bytes
    stayed: tuple[str, ...]  # tracked folders and files that are not copied
    untracked: tuple[str, ...]  # files that would be copied if git tracked them


def make(root: Path, folder: Path) -> Copy:
    """Copy the course at `root` to `folder` completely, or raise Refused and leave no files."""
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
        raise Refused(f"{at}: {error.strerror} (the partial copy was removed)") from None
    stayed = tuple(sorted({_top(path) for path in paths if not _travels(path)}))
    return Copy(str(folder), version, len(given) + 1, size, stayed, tuple(untracked))


def is_one(root: Path) -> bool:
    return (root / MARK).exists()


def _check_place(root: Path, folder: Path) -> None:
    if folder.is_relative_to(root):
        raise Refused(f"{folder} is inside the course itself; name a folder outside of it")
    if not folder.parent.is_dir():
        raise Refused(f"the folder {folder.parent} does not exist; create it first")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} exists and is not an empty folder; name another, or move it away")


def _check_clone(root: Path) -> None:
    top = _git(root, "rev-parse", "--show-toplevel", wrong=True)
    around = top.stdout.rstrip("\n")
    if top.returncode or Path(around).resolve() != root:
        where = f"it is only a folder in {around}" if around else _first(top.stderr)
        raise Refused(
            f"{root} is not a clone of the course ({where}). Only files that git tracks are handed "
            "out, to protect private files; run this in a clone"
        )


def _check_exercises(root: Path, untracked: Sequence[str]) -> None:
    """Check that each exercise is tracked and blank, and matches solutions/ if that exists."""
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
    """Return the leading part of an uncopied path, such as `solutions/` or `tools/pins.py`."""
    parts = PurePosixPath(path).parts
    deep = 2 if any(given.startswith(f"{parts[0]}/") for given in GIVEN) else 1
    return "/".join(parts[:deep]) + ("/" if len(parts) > deep else "")


def _put(root: Path, given: Sequence[str], folder: Path, mark: str) -> int:
    """Write all files next to the destination, then move them there; return the bytes written."""
    beside = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder.parent))
    try:
        for path in given:
            _copy(root / path, beside / path)
        (beside / MARK).write_text(mark, encoding="utf-8")
        mask = os.umask(0)
        os.umask(mask)
        beside.chmod(0o777 & ~mask)
        size = sum(path.stat().st_size for path in beside.rglob("*") if path.is_file())
        os.rename(beside, folder)  # also replaces an empty folder
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(beside)
        raise
    return size


def _copy(source: Path, target: Path) -> None:
    if source.is_symlink():
        raise Refused(f"{source} is a link to a file that may be private; replace it by a file")
    if not source.is_file():
        raise Refused(f"{source} is tracked by git but missing; restore it with `git restore`")
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
    """Return the commit's tag or hash, with `-dirty` if files have changed, or an empty string."""
    return _git(root, "describe", "--tags", "--always", "--dirty", wrong=True).stdout.strip()


def _git(folder: Path, *words: str, wrong: bool = False) -> subprocess.CompletedProcess[str]:
    """Run git in `folder` without GIT_* variables; `wrong` allows the command to fail."""
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
