"""The model of a disk that `atomic_save` is judged on, held against a real folder and by hand."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from course_lib.classroom.checks.lesson_14.disk import (
    CONTENT,
    CREATE,
    MAKE,
    REMOVE,
    RENAME,
    SYNC,
    NotThere,
    Op,
    Tree,
    crashes,
    unsynced,
)

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
        assert kill.tree.folders == folders | {"."}


def test_what_a_real_folder_refuses_the_model_refuses(tmp_path):
    for op in (Op(CREATE, "no/file"), Op(RENAME, "no", "b"), Op(SYNC, "no")):
        with pytest.raises(FileNotFoundError):
            really(op, tmp_path)
        with pytest.raises(NotThere):
            Tree({}).apply(op)


@pytest.mark.parametrize(
    ("count", "loose"), [(3, {0, 1, 2}), (4, {0, 1}), (5, {0}), (6, {0, 5}), (7, set())]
)
def test_a_sync_takes_contents_or_entries(count, loose):
    """Of a file its contents, of a folder its entries; a folder's own entry is in the one above."""
    assert unsynced(SAVE[:count]) == loose


def test_a_renamed_file_is_followed():
    ops = [Op(CREATE, "l"), Op(CONTENT, "l", "b"), Op(RENAME, "l", "latest")]
    assert unsynced([*ops, Op(SYNC, "latest")]) == {0, 2}
    assert unsynced([*ops, Op(SYNC, "l")]) == {0, 1, 2}


def test_a_power_cut_may_keep_the_later_of_two_and_lose_contents():
    ops = [Op(MAKE, "b"), Op(CREATE, "b/rank-0"), Op(CONTENT, "b/rank-0", "new"),
           Op(CREATE, "l"), Op(CONTENT, "l", "b"), Op(RENAME, "l", "latest")]  # fmt: skip
    left = [crash.tree.files for crash in crashes(BEFORE, ops) if crash.power]
    assert any(files.get("latest") == "" for files in left)
    assert any(files.get("latest") == "b" and "b/rank-0" not in files for files in left)
    assert any(files == BEFORE for files in left)


def test_what_comes_after_on_an_entry_is_not_there_without_what_came_before():
    ops = [Op(MAKE, "t"), Op(RENAME, "t", "b")]
    for crash in crashes({}, ops):
        assert ("b" in crash.tree.folders) == (not crash.power or crash.alone == ops[1])
        assert not {"t", "b"} <= crash.tree.folders
