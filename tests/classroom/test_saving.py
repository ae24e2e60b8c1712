"""A notebook that could not be saved is the notebook that was saved before."""

from __future__ import annotations

import errno
import os
import stat
import subprocess

import nbformat
import pytest

pytest.importorskip("jupyter_server")

from course_lib.classroom.saving import WholeFiles
from course_lib.files import replacing


def test_a_new_file_and_a_replaced_one(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(str(path)) as file:
        file.write("one")
    assert path.read_text() == "one" and stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600
    path.chmod(0o640)
    with replacing(str(path)) as file:
        file.write("two")
    assert path.read_text() == "two" and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_through_a_link_the_file_behind_it_changes(tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    with replacing(str(tmp_path / "link.txt")) as file:
        file.write("new")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real.txt").read_text() == "new"


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_failure_at_any_point_keeps_the_old_file(tmp_path, monkeypatch, where):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, where, full)
    with pytest.raises(OSError, match="No space left"), replacing(str(path)) as file:
        file.write("new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.fixture
def small_disk(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "none", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("size", [30_000, 70_000, 88_000, 200_000])
def test_a_full_disk_leaves_the_saved_notebook_whole(small_disk, size):
    """Some of these sizes fill the disk only at the last flush."""
    import asyncio

    manager = WholeFiles(root_dir=str(small_disk))
    small = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("saved")])
    model = {"type": "notebook", "format": "json", "content": small}
    asyncio.run(manager.save(model, "lesson.ipynb"))
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 24_000)
    large = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("y" * size)])
    save = manager.save({**model, "content": large}, "lesson.ipynb")
    if size == 30_000:
        asyncio.run(save)
    else:
        with pytest.raises(Exception, match="No space left"):
            asyncio.run(save)
    found = nbformat.read(small_disk / "lesson.ipynb", as_version=4)
    assert found.cells[0].source == ("y" * size if size == 30_000 else "saved")
    assert not list(small_disk.glob(".~*"))
