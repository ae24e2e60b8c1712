"""The disk for `atomic_save`, and a model of its state after a kill or a power cut.

A write first creates an entry in a folder and then its contents. Contents may be lost until the
file is synced. Entries may be lost, each independently, until the folder is synced. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from posixpath import basename, dirname, normpath
from typing import NamedTuple

from course_classroom.judge import bench
from course_lib.collectives.call import Group
from course_lib.ledger import ledger
from course_lib.ledger.book import Book

MAKE, CREATE, CONTENT = "make", "create", "content"
SYNC, RENAME, REMOVE = "sync", "rename", "remove"
CALLS = {CREATE: "write", CONTENT: "write"}  # Disk.write makes both
TOP = "."


class Op(NamedTuple):
    """An operation of a rank; `border` is the number of the rank's earlier collectives."""

    kind: str
    path: str
    other: str = ""  # a rename's new path, or a file's new contents
    rank: int = 0
    border: int = 0

    @property
    def touches(self) -> set[str]:
        """Return the entries that the operation creates, moves or removes."""
        return set() if self.kind in (CONTENT, SYNC) else {self.path, self.after(self.path)}

    @property
    def said(self) -> str:
        writes = {CREATE: "write (the entry)", CONTENT: "write (the contents)"}
        more = f" to {self.other}" if self.kind == RENAME else ""
        return f"{writes.get(self.kind, self.kind)} {self.path}{more}"

    def after(self, path: str) -> str:
        """Return a path's name after the operation."""
        moves = self.kind == RENAME and inside(path, self.path)
        return self.other + path[len(self.path) :] if moves else path


def parent(path: str) -> str:
    return dirname(path) or TOP


def inside(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


class Tree:
    """The content of each path: the text of a file, or None for a folder."""

    def __init__(self, files: Mapping[str, str]):
        self.held = {TOP: None, **{parent(path): None for path in files}, **files}

    def apply(self, op: Op) -> None:
        """Apply one operation; raise FileNotFoundError with the path if something is missing."""
        folder = parent(op.after(op.path))
        if op.kind in (CONTENT, SYNC, RENAME) and op.path not in self.held:
            raise FileNotFoundError(op.path)
        if op.kind in (MAKE, CREATE, RENAME) and self.held.get(folder, "") is not None:
            raise FileNotFoundError(folder)
        if op.kind == MAKE:
            self.held.setdefault(op.path)
        elif op.kind in (CREATE, CONTENT):
            self.held[op.path] = op.other
        elif op.kind in (RENAME, REMOVE):
            taken = [path for path in self.held if inside(path, op.path)]
            held = {op.after(path): self.held.pop(path) for path in taken}
            self.held |= held if op.kind == RENAME else {}

    @property
    def files(self) -> dict[str, str]:
        return {path: held for path, held in self.held.items() if held is not None}

    def there(self, folder: str) -> dict[str, str]:
        """Return the files of a folder by name."""
        return {basename(p): held for p, held in self.files.items() if parent(p) == folder}


class Crash(NamedTuple):
    """A possible state after a kill or a power cut, and the operation that caused it."""

    tree: Tree
    power: bool
    lost: Op | None = None  # not on the disk, and neither is anything that depends on it
    how: str = ""  # operations that have or have not reached the disk, in words


def crashes(before: Mapping[str, str], ops: Sequence[Op]) -> Iterator[Crash]:
    """Yield the possible states of the disk if all ranks end after these operations."""

    def left(lost: set[int], how: str = "", told: Op | None = None) -> Crash:
        """Return the state without the lost operations and their dependent operations."""
        tree = Tree(before)
        for i, op in enumerate(ops):
            if i not in lost:
                with suppress(FileNotFoundError):
                    tree.apply(op)
        return Crash(tree, bool(lost), told, how)

    yield left(set())
    loose: dict[int, str] = {}  # operations that a power cut may undo, and the path to sync
    for i, op in enumerate(ops):
        synced = op.path if op.kind == SYNC else ""
        loose = {k: op.after(path) for k, path in loose.items() if path != synced}
        if not synced:
            loose[i] = op.path if op.kind == CONTENT else parent(op.after(op.path))
    for i in loose:
        lost = _chain(ops, i, range(i + 1, len(ops)))
        # A lost rename is the clearest cause, because it changes what a reader sees.
        told = ops[next((k for k in sorted(lost) if ops[k].kind == RENAME), i)]
        yield left(lost, f"This operation has not reached the disk: {told.said}. ", told)
    for i in loose:
        how = f"Without a sync, only this operation has reached the disk: {ops[i].said}. "
        yield left({*loose} - _chain(ops, i, range(i - 1, -1, -1)), how)
    yield left({*loose})


def _chain(ops: Sequence[Op], i: int, others: Iterable[int]) -> set[int]:
    """Return an operation together with all `others` on the same entries. Their order is kept, so
    later operations depend on earlier operations."""
    found, entries = {i}, {*ops[i].touches}
    for k in others:
        if ops[k].touches & entries:
            found.add(k)
            entries |= ops[k].touches
    return found


# ---- code on the judge's ranks: nothing is written, but each rank's operations are recorded
MOST, ACROSS = 200, "another file system"  # operations of one rank: a save needs about ten
# Collectives that end only after all ranks have called them.
BORDERS = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
data_of = "{}, piece {}, {}".format  # contents of a rank's file: name, rank, and a seed


class Disk:
    """The disk for the answer, which records all operations."""

    def __init__(self, book: Book, rank: int):
        self._book, self._rank, self.notes = book, rank, []

    def make(self, folder: str) -> None:
        self._note(MAKE, folder)

    def write(self, path: str, data: str) -> None:
        self._note(CREATE, path)
        self._note(CONTENT, path, str(data))

    def sync(self, path: str) -> None:
        self._note(SYNC, path)

    def rename(self, old: str, new: str) -> None:
        if "/" in (str(old)[:1], str(new)[:1]):
            raise OSError(18, ACROSS, old, None, new)
        self._note(RENAME, old, normpath(str(new)))

    def remove(self, path: str) -> None:
        self._note(REMOVE, path)

    def _note(self, kind: str, path: str, other: str = "") -> None:
        if len(self.notes) >= MOST:
            raise RuntimeError(f"{MOST} operations on the disk, but a save needs about ten")
        border = sum(map(self._book.count, BORDERS))
        self.notes.append((kind, normpath(str(path)), other, self._rank, border))


def run(function: Callable, group: Group, name: str, older: list, keep: int, seed: int) -> dict:
    """Run one save; return this rank's operations on the disk."""
    given, rank = list(older), group.rank()
    with ledger() as book:
        disk = Disk(book, rank)
        bench.watched(lambda: function(disk, name, data_of(name, rank, seed), given, keep, group))
    own = [note for note in disk.notes if note[0] == CREATE and note[1].endswith(f"rank-{rank}")]
    borders, changed = sum(map(book.count, BORDERS)), given != older
    return {"notes": disk.notes, "borders": borders, "changed": changed, "own": len(own)}
