"""The disk that `atomic_save` is given, and a model of what a kill or a power cut leaves on it.

A write makes an entry in a folder and then has its contents; until the file is synced the contents
may be lost, until the folder is synced its entries, each by itself. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
    def entry(self) -> str:
        return self.other if self.kind == RENAME else self.path

    @property
    def touches(self) -> set[str]:
        """The entries that it makes, moves or takes away."""
        return set() if self.kind in (CONTENT, SYNC) else {self.path, self.entry}

    @property
    def said(self) -> str:
        writes = {CREATE: "write (the entry)", CONTENT: "write (the contents)"}
        more = f" to {self.other}" if self.kind == RENAME else ""
        return f"{writes.get(self.kind, self.kind)} {self.path}{more}"


def parent(path: str) -> str:
    return path.rpartition("/")[0] or TOP


def inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def moved(path: str, old: str, new: str) -> str:
    return new + path[len(old) :] if inside(path, old) else path


class Tree:
    """What each path holds: a file its text, a folder None."""

    def __init__(self, files: Mapping[str, str]):
        self.held = {TOP: None, **{parent(path): None for path in files}, **files}

    def apply(self, op: Op) -> None:
        """Do one operation; FileNotFoundError, with its path, where something is not there."""
        if op.kind in (CONTENT, SYNC, RENAME) and op.path not in self.held:
            raise FileNotFoundError(op.path)
        if op.kind in (MAKE, CREATE, RENAME) and self.held.get(parent(op.entry), "") is not None:
            raise FileNotFoundError(parent(op.entry))
        if op.kind == MAKE:
            self.held.setdefault(op.path)
        elif op.kind in (CREATE, CONTENT):
            self.held[op.path] = op.other
        elif op.kind in (RENAME, REMOVE):
            taken = [path for path in self.held if inside(path, op.path)]
            held = {moved(path, op.path, op.other): self.held.pop(path) for path in taken}
            self.held |= held if op.kind == RENAME else {}

    @property
    def files(self) -> dict[str, str]:
        return {path: held for path, held in self.held.items() if held is not None}

    def there(self, folder: str) -> dict[str, str]:
        """The files of a folder by their names in it."""
        files = self.files.items()
        return {p.rpartition("/")[2]: held for p, held in files if parent(p) == folder}


class Crash(NamedTuple):
    """A state that a kill or a power cut may leave, and the operation that is to blame."""

    tree: Tree
    power: bool
    lost: Op | None = None  # has not reached the disk, nor has all that builds on it
    how: str = ""  # what has reached the disk, or has not, in words


def crashes(before: Mapping[str, str], ops: Sequence[Op]) -> Iterator[Crash]:
    """What may be there when everything ends after these operations, in this order."""
    yield Crash(_replayed(before, ops, set()), power=False)
    loose = [i for i, op in enumerate(ops) if op.kind != SYNC and not _is_durable(ops, i)]
    for i in loose:
        lost = _chain(ops, i, range(i + 1, len(ops)))
        # Of all that is lost a rename tells most: it changes what a reader sees.
        told = next((k for k in sorted(lost) if ops[k].kind == RENAME), i)
        how = f"What has not reached the disk: {ops[told].said}. "
        yield Crash(_replayed(before, ops, lost), True, ops[told], how)
    for i in loose:
        lost = set(loose) - _chain(ops, i, range(i - 1, -1, -1))
        how = f"Of what was not synced this alone has reached the disk: {ops[i].said}. "
        yield Crash(_replayed(before, ops, lost), True, how=how)
    if loose:
        yield Crash(_replayed(before, ops, set(loose)), power=True)


def _is_durable(ops: Sequence[Op], i: int) -> bool:
    """Whether a sync behind it has taken it to the disk."""
    path = ops[i].path if ops[i].kind == CONTENT else parent(ops[i].entry)
    for later in ops[i + 1 :]:
        if later.kind == RENAME:
            path = moved(path, later.path, later.other)
        elif later.kind == SYNC and later.path == path:
            return True
    return False


def _chain(ops: Sequence[Op], i: int, others: Iterable[int]) -> set[int]:
    """An operation and those of the others on the same entries, which keep their order: the later
    ones cannot be without it, nor it without the earlier ones."""
    found, entries = {i}, set(ops[i].touches)
    for k in others:
        if ops[k].touches & entries:
            found.add(k)
            entries |= ops[k].touches
    return found


def _replayed(before: Mapping[str, str], ops: Sequence[Op], lost: set[int]) -> Tree:
    """The disk after these operations without the lost ones, and what cannot be without them."""
    tree = Tree(before)
    for i, op in enumerate(ops):
        if i not in lost:
            with suppress(FileNotFoundError):
                tree.apply(op)
    return tree


# ---- what runs on the judge's ranks: nothing is written, and what each rank does is noted
MOST = 200  # operations of one rank: a save needs about ten
# Collectives that no rank leaves before all have come.
BORDERS = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")
ACROSS = "another file system"


class Disk:
    """The disk that the answer is given: what it is told to do becomes a note."""

    def __init__(self, book: Book, rank: int):
        self._book, self._rank, self.notes = book, rank, []

    @property
    def borders(self) -> int:
        return sum(record.op in BORDERS for record in self._book.records)

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
        self.notes.append((kind, _plain(path), other, self._rank, self.borders))


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
    given, data = list(older), data_of(name, group.rank(), seed)
    with ledger() as book:
        disk = Disk(book, group.rank())
        bench.watched(lambda: function(disk, name, data, given, keep, group))
    return {"notes": disk.notes, "borders": disk.borders, "changed": given != older}
