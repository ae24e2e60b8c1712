"""Mistakes in files that should reach the disk whole."""

from __future__ import annotations

from tests.mutation import Mutant

FILES = "course_lib/files.py"
TESTS = "tests/test_files.py::test_"


def files(name: str, old: str, new: str, test: str, why: str) -> Mutant:
    return Mutant(f"files-{name}", FILES, old, new, (TESTS + test,), why)


MUTANTS = [
    files(
        "unflushed",
        "    file.flush()\n",
        "",
        "what_python_still_holds_is_flushed_before_the_sync",
        "the end of a file is lost when the power fails",
    ),
    files(
        "unsynced",
        "            sync_file(file)\n",
        "",
        "the_file_is_synced_then_renamed_then_its_folder_is_synced",
        "the name reaches the disk before the bytes do: an empty file in the old one's place",
    ),
    files(
        "folder-unsynced",
        "        raise\n    sync_folder(folder)\n",
        "        raise\n",
        "the_file_is_synced_then_renamed_then_its_folder_is_synced",
        "the rename is lost when the power fails",
    ),
    files(
        "folder-of-the-process",
        "dir=folder)",
        "dir=None)",
        "the_file_is_synced_then_renamed_then_its_folder_is_synced",
        "the new file is written on another disk, from which no rename leads here",
    ),
    files(
        "failing-disk-unheard",
        "        if error.errno not in NOT_OFFERED:\n            raise",
        "        pass",
        "a_disk_that_fails_under_a_folder_is_an_error",
        "a disk that fails is taken for a file system without the call",
    ),
    files(
        "folder-sync-demanded",
        "        if error.errno not in NOT_OFFERED:\n            raise",
        "        raise",
        "a_file_system_that_syncs_no_folder_is_no_error",
        "nothing can be saved on some network disks",
    ),
    files(
        "interrupt-leaves-a-piece",
        "    except BaseException:",
        "    except Exception:",
        "an_error_while_writing_keeps_the_old_file",
        "Ctrl-C leaves a piece of a file in the folder",
    ),
    files(
        "text-in-the-machines-encoding",
        "content.encode()",
        'content.encode("latin-1")',
        "text_goes_in_utf_8_and_bytes_as_they_are",
        "another machine reads other letters",
    ),
]
