"""The model of a disk that `atomic_save` is judged on, held against a real folder and by hand."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lessons.lesson_14.disk import (
    CONTENT,
    CREATE,
    MAKE,
    REMOVE,
    RENAME,
    SYNC,
    Op,
    Tree,
    crashes,
)
from tests.course_lessons.test_checks_every import written

BEFORE = {"latest": "a", "a/rank-0": "old"}
SAVE = [
    Op(MAKE, "t"), Op(CREATE, "t/rank-0"), Op(CONTENT, "t/rank-0", "new"), Op(SYNC, "t/rank-0"),
    Op(SYNC, "t"), Op(RENAME, "t", "b"), Op(SYNC, "."), Op(CREATE, "l"), Op(CONTENT, "l", "b"),
    Op(SYNC, "l"), Op(RENAME, "l", "latest"), Op(SYNC, "."), Op(REMOVE, "a"),
]  # fmt: skip


def really(op: Op, folder: Path) -> None:
    """The same on a real folder."""
    path, other = folder / op.path, folder / op.other
    if op.kind == MAKE:
        path.mkdir(exist_ok=True)
    elif op.kind == CREATE:
        path.write_text("")
    elif op.kind == CONTENT:
        path.write_text(op.other)
    elif op.kind == RENAME:
        path.rename(other)
    elif op.kind == REMOVE:
        shutil.rmtree(path)
    else:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def test_a_kill_leaves_what_a_real_folder_holds(tmp_path):
    for path, held in BEFORE.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(held)
    for k, op in enumerate(SAVE, 1):
        really(op, tmp_path)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        real = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in files}
        kill = next(crashes(BEFORE, SAVE[:k]))
        assert (kill.power, kill.tree.files) == (False, real)
        folders = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_dir()}
        assert kill.tree.held.keys() - kill.tree.files.keys() == folders | {"."}


class Killed:
    """A disk on a real folder whose process kills itself after so many operations."""

    def __init__(self, folder: Path, count: int):
        self.folder, self.left = folder, count

    def make(self, folder: str) -> None:
        self._do(Op(MAKE, folder))

    def write(self, path: str, data: str) -> None:
        self._do(Op(CREATE, path))
        self._do(Op(CONTENT, path, data))

    def sync(self, path: str) -> None:
        self._do(Op(SYNC, path))

    def rename(self, old: str, new: str) -> None:
        self._do(Op(RENAME, old, new))

    def remove(self, path: str) -> None:
        if (self.folder / path).exists():
            self._do(Op(REMOVE, path))

    def _do(self, op: Op) -> None:
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        really(op, self.folder)


def one_rank(name: str, saved: Callable, folder: Path, count: int) -> int:
    """The save of a group of one in a process that dies after `count` operations; its signal."""
    child = os.fork()
    if not child:
        try:
            alone = SimpleNamespace(rank=lambda: 0, size=lambda: 1)
            saved(Killed(folder, count), name, "new", ["a"], 1, alone)
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def test_kill_9_after_every_operation_of_the_solution_leaves_a_checkpoint(tmp_path):
    """On a real folder, a real process: what `latest` names is whole, whenever it dies."""
    space: dict = {}
    exec(written("solutions", "atomic_save"), space)
    space["dist"] = SimpleNamespace(barrier=lambda group: None)
    ends = []
    for count in range(40):
        folder = tmp_path / f"{count}"
        (folder / "a").mkdir(parents=True)
        for path, held in BEFORE.items():
            (folder / path).write_text(held)
        ends.append(one_rank("b", space["atomic_save"], folder, count))
        latest = (folder / "latest").read_text()
        assert (folder / latest / "rank-0").read_text() == {"a": "old", "b": "new"}[latest]
        if not ends[-1]:
            break
    assert ends[-1] == 0 and set(ends[:-1]) == {signal.SIGKILL} and len(ends) > 10
    assert (latest, sorted(path.name for path in folder.iterdir())) == ("b", ["b", "latest"])


def test_what_a_real_folder_refuses_the_model_refuses(tmp_path):
    for op in (Op(CREATE, "no/file"), Op(RENAME, "no", "b"), Op(SYNC, "no")):
        for refuses in (lambda op: really(op, tmp_path), Tree({}).apply):
            with pytest.raises(FileNotFoundError):
                refuses(op)
