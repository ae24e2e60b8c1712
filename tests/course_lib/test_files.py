"""What is on the disk after a write: the old file or the new one, in a folder that knows of it."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from course_lib import files


@pytest.fixture
def calls(monkeypatch) -> list[tuple[str, str]]:
    """What reaches the system, in order: syncs of files and folders, and renames."""
    seen: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.replace

    def fsync(handle: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"
        seen.append((f"sync {kind}", os.readlink(f"/proc/self/fd/{handle}")))
        sync(handle)

    def replace(old, new) -> None:
        seen.append(("rename", os.fspath(new)))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return seen


@pytest.mark.parametrize(
    ("content", "raw"), [("größer\n", "größer\n".encode()), (b"\x00\r\n", b"\x00\r\n"), ("", b"")]
)
def test_text_goes_in_utf_8_and_bytes_as_they_are(tmp_path, content, raw):
    path = tmp_path / "a.txt"
    for _ in range(2):
        files.write_whole(path, content)
        assert path.read_bytes() == raw
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_file_is_synced_then_renamed_then_its_folder_is_synced(tmp_path, calls):
    path = tmp_path / "a.txt"
    files.write_whole(path, "new")
    assert [what for what, _ in calls] == ["sync file", "rename", "sync folder"]
    assert os.path.dirname(calls[0][1]) == str(tmp_path)  # one disk, or there is no rename
    assert calls[1][1] == str(path) and calls[2][1] == str(tmp_path)


def test_what_python_still_holds_is_flushed_before_the_sync(tmp_path, monkeypatch):
    path, sizes = tmp_path / "a.txt", []
    monkeypatch.setattr(os, "fsync", lambda handle: sizes.append(os.fstat(handle).st_size))
    with path.open("w") as file:
        file.write("five!")
        files.sync_file(file)
    assert sizes == [5]


def test_a_relative_path_is_one_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.write_whole("a.txt", "here")
    assert (tmp_path / "a.txt").read_text() == "here"


def test_an_error_while_writing_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def interrupted() -> None:
        with files.replacing(path) as file:
            file.write("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("number", files.NOT_OFFERED)
def test_a_file_system_that_syncs_no_folder_is_no_error(tmp_path, monkeypatch, number):
    def refuse(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    files.sync_folder(tmp_path)


def test_a_disk_that_fails_under_a_folder_is_an_error(tmp_path, monkeypatch):
    opened = len(os.listdir("/proc/self/fd"))

    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        files.sync_folder(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == opened
