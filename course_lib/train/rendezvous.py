"""Where ranks of one host meet: a file without a name on the disk, so that nothing of it can stay.

On Linux it is memory that the processes share by a descriptor, and it is gone with the last of
them, even where all are killed. Elsewhere it is a folder, which its starter removes, or, if that is
killed, its ranks. Lesson 08.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "course-train-"


class Rendezvous:
    """A file for `ranks.start(rendezvous=…)`; a context, which removes it at the end."""

    def __init__(self, *, named: bool = not hasattr(os, "memfd_create")):
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX)) if named else None
        self._file = None if named else os.memfd_create(PREFIX + "meet")

    @property
    def path(self) -> str:
        """As all processes that have the descriptors call it."""
        return behind(self._file) if self.folder is None else str(self.folder / "meet")

    @property
    def descriptors(self) -> list[int]:
        """What a process has to be started with (`pass_fds`)."""
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
    """The path of a meeting without a name, in the process that has it under this number."""
    return f"/proc/self/fd/{descriptor}"


def abandon(path: str) -> None:
    """Remove what is left of a meeting whose starter is gone; every rank may do so."""
    folder = Path(path).parent
    if folder.name.startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
