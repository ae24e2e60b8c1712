"""What git tracks in a clone of the course, and whether another repository knows the same objects.

Read with git's own command; a failure becomes a sentence. No lesson derives it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

LIMIT = 120.0  # seconds


class NoGit(Exception):
    """Why git gives no answer, in words."""


def top(folder: Path) -> Path | None:
    """The uppermost folder of the clone that `folder` lies in, or its .git; None outside of any."""
    done = _git(folder, "rev-parse", "--path-format=absolute", "--show-toplevel", wrong=True)
    if done.returncode == 0:
        return Path(done.stdout.rstrip("\n"))
    if "not a git repository" in done.stderr:
        return None
    return Path(_git(folder, "rev-parse", "--absolute-git-dir").stdout.rstrip("\n"))


def files(root: Path) -> list[str]:
    """The paths that git tracks in the clone at `root`."""
    return sorted(set(_git(root, "ls-files", "-z").stdout.split("\0")) - {""})


def untracked(root: Path, below: Sequence[str]) -> list[str]:
    """The paths below some that git neither tracks nor ignores."""
    others = ("ls-files", "-z", "--others", "--exclude-standard", "--", *below)
    return sorted(set(_git(root, *others).stdout.split("\0")) - {""})


def version(root: Path) -> str:
    """The commit by its tag or number, `-dirty` where files have changed since; or nothing."""
    return _git(root, "describe", "--tags", "--always", "--dirty", wrong=True).stdout.strip()


def objects(root: Path, below: str) -> list[str]:
    """The names of the objects that git keeps of the tracked files below a folder."""
    listed = _git(root, "ls-files", "-s", "-z", "--", below).stdout.split("\0")
    return sorted({line.split()[1] for line in listed if line})


def knows(folder: Path, names: Sequence[str]) -> bool:
    """Whether the repository around `folder` keeps one of these objects."""
    asked = "".join(f"{name}\n" for name in names)
    told = _git(folder, "cat-file", "--batch-check", given=asked).stdout.splitlines()
    return any(not line.endswith(" missing") for line in told)


def _git(
    folder: Path, *words: str, given: str = "", wrong: bool = False
) -> subprocess.CompletedProcess[str]:
    """git in that folder, whatever repository the environment speaks of; `wrong`: it may fail."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            env={**kept, "LC_ALL": "C"},
            input=given,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoGit(f"git {words[0]} in {folder} did not end in {LIMIT:g} s") from None
    except OSError as error:
        raise NoGit(f"git cannot be run in {folder} ({error.strerror})") from None
    if done.returncode and not wrong:
        told = (done.stderr.strip().splitlines() or ["no reason"])[0]
        raise NoGit(f"git {words[0]} in {folder} failed ({told})")
    return done
