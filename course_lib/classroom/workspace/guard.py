"""One JupyterLab a workspace: two on one folder would save over each other's answers.

The lock belongs to the process, so that one that was killed leaves nothing to clear away. No lesson
derives it; docs/ says what to do where two people share a user name.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from course_lib.classroom import progress
from course_lib.classroom.workspace import place

LOCK = "lab.lock"


@contextmanager
def only_lab(work: Path) -> Iterator[Callable[[str], None]]:
    """Hold the workspace; the function given tells others at which address it is open."""
    with place.told(work):
        file = open(work / progress.MARK / LOCK, "a+", encoding="utf-8")  # noqa: SIM115
    with file:
        if not place.lock(file):
            raise _taken(work, file)
        since = f"since {datetime.now():%Y-%m-%d %H:%M}, process {os.getpid()}"

        def tell(url: str = "") -> None:
            with suppress(OSError):  # on a full disk the lock holds all the same
                file.truncate(0)
                file.write(f"{since}{f', at {url}' if url else ', starting'}\n")
                file.flush()

        tell()
        yield tell
        file.truncate(0)


def _taken(work: Path, file) -> place.Refused:
    file.seek(0)
    about = file.read(300).strip() or "just starting"
    here = Path(sys.executable).parent / "jupyter"
    jupyter = "jupyter" if shutil.which("jupyter") or not here.exists() else str(here)
    return place.Refused(
        f"A JupyterLab is open on {work} already ({about}). Two would save over each other.",
        f"if it is yours, go on in that one: `{jupyter} server list` shows its address with the "
        "token. If another person uses this user name too, take a folder of your own: "
        f"{place.VARIABLE}=~/work-NAME make lab",
    )
