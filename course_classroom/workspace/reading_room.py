"""JupyterLab's write access in a workspace: everything except the library and docs/.

Lessons link to files in both, and an accidental key press there must not change the course for
everyone. If saving a notebook fails, the previous version stays intact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from tornado.web import HTTPError

from course_classroom.workspace.copying import LINKED
from course_lib.files import replacing


class WholeFiles(AsyncLargeFileManager):
    """Jupyter's contents manager with `replacing` for writes, because the standard manager cannot
    repair a failed last flush on a full disk."""

    @contextmanager
    def atomic_writing(self, os_path: str, *args, text: bool = True, **kwargs) -> Iterator:
        options = {"encoding": "utf-8", "newline": "\n", **kwargs} if text else {}
        with (
            self.perm_to_403(os_path),
            replacing(os_path, "w" if text else "wb", **options) as file,
        ):
            yield file


class LearnersFiles(WholeFiles):
    """A contents manager that saves complete files, and saves none in the linked folders."""

    def in_library(self, path: str) -> bool:
        """Return True if an API path is in a folder linked from the course, or is that link."""
        first = path.strip("/").split("/")[0]
        return first in LINKED and (Path(self.root_dir) / first).is_symlink()

    def refuse(self, path: str) -> None:
        if self.in_library(path):
            raise HTTPError(
                403,
                f"{path} belongs to the course and is read-only here. To change it, save it under "
                f"another name, outside of {' and '.join(LINKED)}.",
            )

    async def save(self, model: dict, path: str = "") -> dict:
        self.refuse(path)
        return await super().save(model, path)

    async def delete_file(self, path: str) -> None:
        self.refuse(path)
        await super().delete_file(path)

    async def rename_file(self, old_path: str, new_path: str) -> None:
        self.refuse(old_path)
        self.refuse(new_path)
        await super().rename_file(old_path, new_path)

    async def copy(self, from_path: str, to_path: str | None = None) -> dict:
        self.refuse(to_path or from_path)  # next to itself, if no place is named
        return await super().copy(from_path, to_path)

    async def create_checkpoint(self, path: str) -> dict:
        self.refuse(path)
        return await super().create_checkpoint(path)

    async def list_checkpoints(self, path: str) -> list:
        # The stock method creates a folder for them even when reading.
        return [] if self.in_library(path) else await super().list_checkpoints(path)

    async def get(self, path: str, *args, **kwargs) -> dict:
        model = await super().get(path, *args, **kwargs)
        if self.in_library(path):
            model["writable"] = False  # JupyterLab then opens it read-only
        return model
