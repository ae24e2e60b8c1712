"""A file that is written is the old one or the new one, whatever happens, and never a part.

It is written beside its place, brought to the disk, and put in its place in one step.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress


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


def _mode_of(path: str) -> int:
    """The permissions the file has, or those a new one would get."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
