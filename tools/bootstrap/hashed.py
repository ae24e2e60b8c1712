"""HASHES=FILE: only packages whose files have the hashes that FILE lists, from whatever index.

`python -m tools.hashes` writes such a file from packages that were downloaded once. What a package
needs for being built is not verified, pip has no hashes for it. No lesson derives it.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from .pip_run import Pip
from .say import Refusal, say
from .torch_build import CPU_INDEX

ANEW = "python -m tools.hashes FOLDER_OF_PACKAGES FILE writes such a file"


def asked(root: Path) -> Path | None:
    """The file that HASHES names, or None."""
    named = os.environ.get("HASHES")
    if not named:
        return None
    file = root / Path(named).expanduser()
    if not file.is_file():
        raise Refusal(f"HASHES={named} is no file.", f"{ANEW}; without HASHES none is asked for")
    return file


def fingerprint(file: Path | None) -> str:
    """Of a file of hashes, what a stamp keeps; empty where there is none."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file else ""


def install(pip: Pip, file: Path, extras: tuple[str, ...]) -> None:
    """All that the file lists, verified; then the course itself, and nothing more."""
    say(f"installing what {file} lists, each package held against its hash")
    build = re.search(r"^torch==[\w.]+\+(\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    index = os.environ.get("TORCH_INDEX_URL") or (CPU_INDEX if build else "")
    more = ["--extra-index-url", index] if index else []
    pip.install("--require-hashes", "--no-deps", *more, "-r", str(file))
    course = f".[{','.join(extras)}]"
    try:
        pip.install("--no-index", "--no-build-isolation", "-e", course, alone=True)
    except Refusal as refusal:
        raise Refusal(
            f"HASHES={file} does not list all that is needed: {refusal.cause}",
            f"{ANEW}; FOLDER has to hold everything (pip download tells how)",
        ) from None
