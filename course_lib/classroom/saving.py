"""Saving a notebook without ever harming the saved one: written beside it, then put in its place.

Jupyter's own way writes into the file and repairs it from a copy; on a full disk its last flush
falls outside that repair. `course lab` uses this one.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager


@contextmanager
def replacing(path: str, mode: str = "w", **options) -> Iterator:
    """A file that takes the place of `path` once it is whole on the disk, and not before."""
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    handle, beside = tempfile.mkstemp(prefix=f".~{name}-", dir=folder or ".")
    try:
        with os.fdopen(handle, mode, **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, _mode_of(path))
        os.replace(beside, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise


class WholeFiles(AsyncLargeFileManager):
    """Jupyter's contents manager with `replacing` in the place of its own writing."""

    @contextmanager
    def atomic_writing(self, os_path: str, *args, text: bool = True, **kwargs) -> Iterator:
        options = {"encoding": "utf-8", "newline": "\n", **kwargs} if text else {}
        with (
            self.perm_to_403(os_path),
            replacing(os_path, "w" if text else "wb", **options) as file,
        ):
            yield file


def _mode_of(path: str) -> int:
    """The permissions the file has, or those a new one would get."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
