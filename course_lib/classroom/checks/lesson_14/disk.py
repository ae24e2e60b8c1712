"""The disk that `atomic_save` is given, and a model of what a kill or a power cut leaves on it.

A write makes an entry in a folder and then has its contents; until the file is synced the contents
may be lost, until the folder is synced its entries, each by itself. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from course_lib.classroom.checks import bench
from course_lib.collectives.call import Group
from course_lib.ledger import ledger

MAKE, CREATE, CONTENT, SYNC, RENAME, REMOVE = (
    "make",
    "create",
    "content",
    "sync",
    "rename",
    "remove",
)
TOP = "."


class Op(NamedTuple):
    """One operation of a rank; `border` counts the collectives that it had made before."""

    kind: str
    path: str
    other: str = ""  # a rename's new path, or what a file is to hold
    rank: int = 0
    border: int = 0

    @property
    def touches(self) -> set[str]:
        """The entries that it makes, moves or takes away."""
        if self.kind == RENAME:
            return {self.path, self.other}
        return {self.path} if self.kind in (MAKE, CREATE, REMOVE) else set()


class NotThere(Exception):
    """An operation on what is not there: on a real disk, FileNotFoundError."""


def parent(path: str) -> str:
    return path.rpartition("/")[0] or TOP


def inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def moved(path: str, old: str, new: str) -> str:
    return new + path[len(old) :] if inside(path, old) else path


class Tree:
    """Folders and files with what they hold."""

    def __init__(self, files: dict[str, str]):
        self.files = dict(files)
        self.folders = {TOP} | {parent(path) for path in files}

    def apply(self, op: Op) -> None:
        """Do one operation, or raise NotThere."""
        if op.kind in (MAKE, CREATE) and parent(op.path) not in self.folders:
            raise NotThere(parent(op.path))
        if op.kind == MAKE:
            self.folders.add(op.path)
        elif op.kind == CREATE:
            self.files[op.path] = ""
        elif op.kind == CONTENT:
            if op.path not in self.files:
                raise NotThere(op.path)
            self.files[op.path] = op.other
        elif op.kind == RENAME:
            self._rename(op.path, op.other)
        elif op.kind == REMOVE:
            self.folders = {path for path in self.folders if not inside(path, op.path)}
            self.files = {p: held for p, held in self.files.items() if not inside(p, op.path)}
        elif op.path not in self.files and op.path not in self.folders:  # a sync
            raise NotThere(op.path)

    def _rename(self, old: str, new: str) -> None:
        if old not in self.files and old not in self.folders:
            raise NotThere(old)
        if parent(new) not in self.folders:
            raise NotThere(parent(new))
        self.files = {moved(path, old, new): held for path, held in self.files.items()}
        self.folders = {moved(path, old, new) for path in self.folders}

    def there(self, folder: str) -> dict[str, str]:
        """The files of a folder by their names in it."""
        files = self.files.items()
        return {p.rpartition("/")[2]: held for p, held in files if parent(p) == folder}


class Crash(NamedTuple):
    """A state that a kill or a power cut may leave, and the operation that is to blame."""

    tree: Tree
    power: bool
    lost: Op | None = None  # has not reached the disk, nor has all that builds on it
    alone: Op | None = None  # of all that was not synced, only this one has, and what it needs


def crashes(before: dict[str, str], ops: Sequence[Op]) -> Iterator[Crash]:
    """What may be there when everything ends after these operations, in this order."""
    yield Crash(_replayed(before, ops, set()), power=False)
    loose = unsynced(ops)
    if not loose:
        return
    for i in sorted(loose):
        lost = _with_what_follows(ops, i)
        # Of all that is lost a rename tells most: it changes what a reader sees.
        told = next((k for k in sorted(lost) if ops[k].kind == RENAME), i)
        yield Crash(_replayed(before, ops, lost), power=True, lost=ops[told])
    for i in sorted(loose):
        lost = loose - _with_what_it_needs(ops, i)
        yield Crash(_replayed(before, ops, lost), power=True, alone=ops[i])
    yield Crash(_replayed(before, ops, loose), power=True)


def unsynced(ops: Sequence[Op]) -> set[int]:
    """The operations that a power cut may undo."""
    return {i for i, op in enumerate(ops) if op.kind != SYNC and not _is_durable(ops, i)}


def _is_durable(ops: Sequence[Op], i: int) -> bool:
    """Whether a sync behind it has taken it to the disk."""
    op = ops[i]
    path = op.path if op.kind == CONTENT else parent(op.other if op.kind == RENAME else op.path)
    for later in ops[i + 1 :]:
        if later.kind == RENAME:
            path = moved(path, later.path, later.other)
        elif later.kind == SYNC and later.path == path:
            return True
    return False


def _with_what_follows(ops: Sequence[Op], i: int) -> set[int]:
    """An operation and those after it on the same entries, which cannot be without it."""
    lost, entries = {i}, set(ops[i].touches)
    for k, later in enumerate(ops[i + 1 :], i + 1):
        if later.touches & entries:
            lost.add(k)
            entries |= later.touches
    return lost


def _with_what_it_needs(ops: Sequence[Op], i: int) -> set[int]:
    """An operation and those before it on the same entries: on one entry they keep their order."""
    needed, entries = {i}, set(ops[i].touches)
    for k in range(i - 1, -1, -1):
        if ops[k].touches & entries:
            needed.add(k)
            entries |= ops[k].touches
    return needed


def _replayed(before: dict[str, str], ops: Sequence[Op], lost: set[int]) -> Tree:
    """The disk after these operations without the lost ones, and what cannot be without them."""
    tree = Tree(before)
    for i, op in enumerate(ops):
        if i not in lost:
            try:
                tree.apply(op)
            except NotThere:
                continue
    return tree


# ---- what runs on the judge's ranks: nothing is written, and what each rank does is noted
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
