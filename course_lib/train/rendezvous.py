"""The meeting place of one host's ranks: a file without a name on the disk, so none can remain.

On Linux it is memory that processes share by a descriptor, and it disappears with the last of them,
even if all are killed. Elsewhere it is a folder, which is removed by its starter, or by its ranks
if the starter is killed. Lesson 08.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "course-train-"


class Rendezvous:
    """A file for `ranks.start(rendezvous=…)`, and a context manager that removes it at the end."""

    def __init__(self, *, named: bool = not hasattr(os, "memfd_create")):
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX)) if named else None
        self._file = None if named else os.memfd_create(PREFIX + "meet")

    @property
    def path(self) -> str:
        """The path in all processes that have the descriptors."""
        return behind(self._file) if self.folder is None else str(self.folder / "meet")

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that a process must be started with (`pass_fds`)."""
        return [] if self._file is None else [self._file]

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self.folder is not None:
            abandon(self.path)


def behind(descriptor: int) -> str:
    """Return the path of an unnamed meeting file in the process that has this descriptor."""
    return f"/proc/self/fd/{descriptor}"


def abandon(path: str) -> None:
    """Remove the remains of a meeting whose starter is gone; every rank may do so."""
    folder = Path(path).parent
    if folder.name.startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
