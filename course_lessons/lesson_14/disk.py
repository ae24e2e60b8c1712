"""The disk that `atomic_save` is given, and a model of what a kill or a power cut leaves on it.

A write makes an entry in a folder and then has its contents; until the file is synced the contents
may be lost, until the folder is synced its entries, each by itself. Lesson 14.
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
        return set() if self.kind in (CONTENT, SYNC) else {self.path, self.after(self.path)}

    @property
    def said(self) -> str:
        writes = {CREATE: "write (the entry)", CONTENT: "write (the contents)"}
        more = f" to {self.other}" if self.kind == RENAME else ""
        return f"{writes.get(self.kind, self.kind)} {self.path}{more}"

    def after(self, path: str) -> str:
        """Where a path is after it."""
        moves = self.kind == RENAME and inside(path, self.path)
        return self.other + path[len(self.path) :] if moves else path


def parent(path: str) -> str:
    return dirname(path) or TOP


def inside(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


class Tree:
    """What each path holds: a file its text, a folder None."""

    def __init__(self, files: Mapping[str, str]):
        self.held = {TOP: None, **{parent(path): None for path in files}, **files}

    def apply(self, op: Op) -> None:
        """Do one operation; FileNotFoundError, with its path, where something is not there."""
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
        """The files of a folder by their names in it."""
        return {basename(p): held for p, held in self.files.items() if parent(p) == folder}


class Crash(NamedTuple):
    """A state that a kill or a power cut may leave, and the operation that is to blame."""

    tree: Tree
    power: bool
    lost: Op | None = None  # has not reached the disk, nor has all that builds on it
    how: str = ""  # what has reached the disk, or has not, in words


def crashes(before: Mapping[str, str], ops: Sequence[Op]) -> Iterator[Crash]:
    """What may be there when everything ends after these operations, in this order."""

    def left(lost: set[int], how: str = "", told: Op | None = None) -> Crash:
        """Without the lost ones, and what cannot be without them."""
        tree = Tree(before)
        for i, op in enumerate(ops):
            if i not in lost:
                with suppress(FileNotFoundError):
                    tree.apply(op)
        return Crash(tree, bool(lost), told, how)

    yield left(set())
    loose: dict[int, str] = {}  # what a power cut may take, and what has to be synced
    for i, op in enumerate(ops):
        synced = op.path if op.kind == SYNC else ""
        loose = {k: op.after(path) for k, path in loose.items() if path != synced}
        if not synced:
            loose[i] = op.path if op.kind == CONTENT else parent(op.after(op.path))
    for i in loose:
        lost = _chain(ops, i, range(i + 1, len(ops)))
        # Of all that is lost a rename tells most: it changes what a reader sees.
        told = ops[next((k for k in sorted(lost) if ops[k].kind == RENAME), i)]
        yield left(lost, f"What has not reached the disk: {told.said}. ", told)
    for i in loose:
        how = f"Of what was not synced this alone has reached the disk: {ops[i].said}. "
        yield left({*loose} - _chain(ops, i, range(i - 1, -1, -1)), how)
    yield left({*loose})


def _chain(ops: Sequence[Op], i: int, others: Iterable[int]) -> set[int]:
    """An operation and those of the others on the same entries, which keep their order: the later
    ones cannot be without it, nor it without the earlier ones."""
    found, entries = {i}, {*ops[i].touches}
    for k in others:
        if ops[k].touches & entries:
            found.add(k)
            entries |= ops[k].touches
    return found


# ---- what runs on the judge's ranks: nothing is written, and what each rank does is noted
MOST, ACROSS = 200, "another file system"  # operations of one rank: a save needs about ten
# Collectives that no rank leaves before all have come.
BORDERS = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
data_of = "{}, piece {}, {}".format  # what a rank's file is to hold: of its name, rank, and a seed


class Disk:
    """The disk that the answer is given: what it is told to do becomes a note."""

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
            raise RuntimeError(f"{MOST} operations on the disk, and a save needs about ten")
        border = sum(map(self._book.count, BORDERS))
        self.notes.append((kind, normpath(str(path)), other, self._rank, border))


def run(function: Callable, group: Group, name: str, older: list, keep: int, seed: int) -> dict:
    """One save; what this rank did with the disk."""
    given, rank = list(older), group.rank()
    with ledger() as book:
        disk = Disk(book, rank)
        bench.watched(lambda: function(disk, name, data_of(name, rank, seed), given, keep, group))
    own = [note for note in disk.notes if note[0] == CREATE and note[1].endswith(f"rank-{rank}")]
    borders, changed = sum(map(book.count, BORDERS)), given != older
    return {"notes": disk.notes, "borders": borders, "changed": changed, "own": len(own)}
