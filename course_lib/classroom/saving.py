"""Saving a notebook without ever harming the saved one.

Jupyter's own way writes into the file and repairs it from a copy; on a full disk its last flush
falls outside that repair. `course lab` uses this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager

from course_lib.files import replacing


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
