"""A notebook that could not be saved is the notebook that was saved before."""

from __future__ import annotations

import stat

import nbformat
import pytest

pytest.importorskip("jupyter_server")

from course_classroom.workspace.reading_room import WholeFiles
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


@pytest.mark.parametrize("size", [30_000, 70_000, 88_000, 200_000])
def test_a_full_disk_leaves_the_saved_notebook_whole(small_disk, size):
    """Some of these sizes fill the disk only at the last flush."""
    import asyncio

    manager = WholeFiles(root_dir=str(small_disk))
    small = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("saved")])
    model = {"type": "notebook", "format": "json", "content": small}
    asyncio.run(manager.save(model, "lesson.ipynb"))
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 56_000)
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
