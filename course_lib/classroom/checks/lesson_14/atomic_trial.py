"""What runs on the judge's ranks for `atomic_save`: a disk that notes what each rank does with it.

Nothing is written: the notes of all ranks are put together afterwards, in every order that the
collectives between them allow, and ended at every point. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_14.disk import (
    CONTENT,
    CREATE,
    MAKE,
    REMOVE,
    RENAME,
    SYNC,
    TOP,
)
from course_lib.collectives.call import Group
from course_lib.ledger import ledger

MOST = 200  # operations of one rank: a save needs about ten
# Collectives that no rank leaves before all have come.
BORDERS = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
ACROSS = "another file system"


class Disk:
    """The disk that the answer is given: what it is told to do becomes a note."""

    def __init__(self, borders: Callable[[], int]):
        self._borders, self.notes = borders, []

    def make(self, folder: str) -> None:
        self._note(MAKE, folder)

    def write(self, path: str, data: str) -> None:
        self._note(CREATE, path)
        self._note(CONTENT, path, str(data))

    def sync(self, path: str) -> None:
        self._note(SYNC, path)

    def rename(self, old: str, new: str) -> None:
        if any(str(path).startswith("/") for path in (old, new)):
            raise OSError(18, ACROSS, str(old), None, str(new))
        self._note(RENAME, old, _plain(new))

    def remove(self, path: str) -> None:
        self._note(REMOVE, path)

    def _note(self, kind: str, path: str, other: str = "") -> None:
        if len(self.notes) >= MOST:
            raise RuntimeError(f"{MOST} operations on the disk, and a save needs about ten")
        self.notes.append((kind, _plain(path), other, self._borders()))


def _plain(path: str) -> str:
    """A path below the run's folder, in one spelling."""
    if not isinstance(path, str):
        raise TypeError(f"a path is a text, and here is a {type(path).__name__}")
    parts = [part for part in path.split("/") if part not in ("", TOP)]
    return ("/" if path.startswith("/") else "") + "/".join(parts) or TOP


def data_of(name: str, rank: int, seed: int) -> str:
    """What a rank's file is to hold."""
    return f"{name}, piece {rank}, {seed * 1009 + rank}"


def run(
    function: Callable, group: Group, name: str, older: list[str], keep: int, seed: int
) -> dict:
    """One save; what this rank did with the disk."""
    rank = group.rank()
    with ledger() as book:
        disk = Disk(lambda: sum(record.op in BORDERS for record in book.records))
        given, data = list(older), data_of(name, rank, seed)
        out, _ = bench.watched(lambda: function(disk, name, data, given, keep, group))
        borders = sum(record.op in BORDERS for record in book.records)
    return {
        "kind": type(out).__name__,
        "notes": disk.notes,
        "borders": borders,
        "changed": given != older,
    }
