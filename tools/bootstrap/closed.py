"""Whether a Python, or what it imports, is closed to this user; and which folder closes it.

A Python in somebody's home runs for its owner and looks broken to everybody else.
No lesson derives it.
"""

from __future__ import annotations

import os
from pathlib import Path

from .say import Refusal

_MOST_LINKS = 40


def closed_part(python: Path) -> Path | None:
    """The first folder or file that keeps this user from the Python or its library; else None."""
    found, place = follow(python)
    if found is not None:
        return found
    for prefix in sorted({python.parent.parent, place.parent.parent}):
        library = prefix / "lib"
        found, _ = follow(library)
        if found is not None:
            return found
        for versioned in sorted(library.glob("python3*")):
            found = _closed_folder(versioned) or _closed_folder(versioned / "site-packages")
            if found is not None:
                return found
    return None


def refusal(what: str, place: Path) -> Refusal:
    """That `what` cannot be used because of `place`, and who can change that."""
    user = os.environ.get("USER") or f"user {os.getuid()}"
    return Refusal(
        f"{what} cannot be used by {user}: {place} may not be read.",
        f"its owner opens it for all (chmod -R a+rX {place}, and a+x for each folder above it); "
        "or an environment is made from a Python that everybody may read, such as the system's: "
        "PYTHON=/usr/bin/python3 make ...",
    )


def follow(path: Path) -> tuple[Path | None, Path]:
    """(what on the way to `path` may not be read, where the way ends); links are followed."""
    here, links = Path("/"), 0
    left = list(Path(os.path.abspath(str(path))).parts[1:])
    while left:
        if not os.access(str(here), os.X_OK):
            return here, here
        part = left.pop(0)
        here = here.parent if part == ".." else here / part
        if here.is_symlink():
            links += 1
            if links > _MOST_LINKS:
                return None, here
            target = os.readlink(str(here))
            left = [one for one in Path(target).parts if one != "/"] + left
            here = Path("/") if target.startswith("/") else here.parent
        elif not here.exists():
            return None, here
    return (None if os.access(str(here), os.R_OK | os.X_OK) else here), here


def _closed_folder(folder: Path) -> Path | None:
    """The folder, or the first thing in it, that may not be looked into."""
    if not folder.is_dir():
        return None
    if not os.access(str(folder), os.R_OK | os.X_OK):
        return folder
    for one in sorted(folder.iterdir()):
        if one.exists() and not os.access(str(one), os.R_OK | (os.X_OK if one.is_dir() else 0)):
            return one
    return None
