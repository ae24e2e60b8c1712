"""Why a state that a crash has left cannot be gone on from, and the mistake that leaves it.

A job that starts again reads `latest`, and the files of the folder that it names; no folder with
the name of a checkpoint may be there and not whole. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from course_lib.classroom import agreement
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_14.disk import (
    CONTENT,
    CREATE,
    MAKE,
    REMOVE,
    RENAME,
    Crash,
    Op,
    Tree,
    inside,
    parent,
)
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_14/atomic_save")

LATEST, STEP = "latest", "step-"


class Saved(NamedTuple):
    """What one save has to leave, and what was there before it."""

    name: str
    pieces: dict[str, str]  # file of the folder → what it holds
    older: list[str]
    keep: int
    before: dict[str, str]
    when: str

    def is_whole(self, tree: Tree, folder: str) -> bool:
        if folder == self.name:
            return tree.there(folder) == self.pieces
        return bool(tree.there(folder)) and tree.there(folder) == Tree(self.before).there(folder)

    def torn(self, tree: Tree) -> str:
        """A folder with a checkpoint's name that is there, and not whole."""
        known = (self.name, *self.older)
        there = (folder for folder in known if folder in tree.folders)
        return next((folder for folder in there if not self.is_whole(tree, folder)), "")

    def look_at_end(self, tree: Tree) -> None:
        """A Finding where a save that nothing disturbs has not left what it should."""
        held = tree.there(self.name)
        if tree.files.get(LATEST) != self.name:
            raise SAYS("latest not moved", latest=tree.files.get(LATEST), when=self.when)
        if set(held) - set(self.pieces):
            raise SAYS(
                "leftovers of a killed save",
                name=self.name,
                held=sorted(held),
                when=self.when,
                pieces=len(self.pieces),
            )
        if set(held) != set(self.pieces):
            raise SAYS("not saved #1", name=self.name, held=sorted(held), when=self.when)
        for file, data in self.pieces.items():
            if held[file] != data:
                about = {"name": self.name, "file": file, "held": held[file], "data": data}
                raise SAYS("not saved #2", when=self.when, **about)
        stay = [name for name in (*self.older, self.name) if name in tree.folders]
        wanted = [*self.older, self.name][-self.keep :]
        there = f"{agreement.listed(stay)} {agreement.verb('is', len(stay))}"
        if len(stay) > self.keep:
            raise SAYS("older ones stay", when=self.when, keep=self.keep, stay=there)
        if stay != wanted:
            raise SAYS("too few stay", when=self.when, keep=self.keep, stay=there)
        old = {data: path for path, data in self.before.items() if parent(path) in self.older}
        too_old = {data: path for data, path in old.items() if parent(path) not in wanted}
        for path, data in tree.files.items():
            if data in too_old:
                raise SAYS(
                    "an old one under another name", path=path, was=too_old[data], when=self.when
                )


def refuse(saved: Saved, crash: Crash, done: Sequence[Op]) -> None:
    """A Finding where a job could not go on from what this crash has left."""
    tree = crash.tree
    latest, torn = tree.files.get(LATEST), saved.torn(tree)
    if latest in (saved.name, *saved.older) and saved.is_whole(tree, latest) and not torn:
        return
    how = f"{'The power fails' if crash.power else 'A kill comes'} {_after(done)}, {saved.when}. "
    if crash.lost:
        how += f"What has not reached the disk: {_told(crash.lost)}. "
    elif crash.alone:
        how += f"Of what was not synced this alone has reached the disk: {_told(crash.alone)}. "
    name, text = _named(saved, crash, done, torn)
    raise Finding(name, how + text)


def _after(done: Sequence[Op]) -> str:
    return f"after rank {done[-1].rank}'s {_told(done[-1])}" if done else "before the first step"


def _told(op: Op) -> str:
    more = f" to {op.other}" if op.kind == RENAME else ""
    kind = {CREATE: "write (the entry)", CONTENT: "write (the contents)"}.get(op.kind, op.kind)
    return f"{kind} {op.path}{more}"


def _named(saved: Saved, crash: Crash, done: Sequence[Op], torn: str) -> tuple[str, str]:
    """The mistake, and what to say of it."""
    tree, blamed = crash.tree, crash.lost or crash.alone
    latest = tree.files.get(LATEST)
    in_place = any(op.kind in (MAKE, CREATE) and inside(op.path, saved.name) for op in done)
    if torn == saved.name and in_place:
        return "written in place", (
            f"{saved.name} is there, and not complete. Write into a folder of another name, and "
            "rename it when all of it is on the disk: then it is complete or not there."
        )
    if any(op.kind == CREATE and op.path == LATEST for op in done) and latest not in (
        saved.name, *saved.older,
    ):  # fmt: skip
        return "latest written in place", (
            "`latest` is there, and empty: to write a file is to empty it first. Write another "
            "file, sync it, and rename it over `latest`."
        )
    if torn in saved.older:
        left, all_of_it = len(tree.there(torn)), len(Tree(saved.before).there(torn))
        return "an old one removed in pieces", (
            f"{torn} is there with {left} of its {all_of_it} files: it was removed file by file. A "
            "folder with a checkpoint's name is complete or not there. Remove it in one step, or "
            "rename it first to a name that is no checkpoint's."
        )
    if not crash.power:
        return _named_of_a_kill(saved, tree)
    removed = [op for op in done if op.kind == REMOVE and op.path in saved.older]
    if removed and latest in saved.older and latest not in tree.folders:
        return "removed before it was replaced", (
            f"`latest` still names {latest} on the disk, and {latest} is gone. Remove an older "
            "one when the new `latest` has been synced."
        )
    if blamed and blamed.kind == CONTENT and crash.lost:
        if blamed.path.rpartition("/")[2].startswith("rank-"):
            return "file not synced", (
                f"{saved.name} is there, and the contents of a file in it are not: a rename says "
                "nothing about contents. Sync each file before the folder gets its name."
            )
        return "latest not synced", (
            "`latest` names nothing: its entry is there, and its contents are not. Sync the new "
            "file before you rename it."
        )
    if torn == saved.name:
        return "folder not synced", (
            f"{saved.name} is there, and a file in it is not: a file's sync takes its contents to "
            "the disk, not its entry. Sync the folder with the files before it gets its name."
        )
    return "latest before the folder", (
        f"`latest` names {latest}, which is not there: of two renames the second may reach the "
        "disk first. Sync the folder above them between the two."
    )


def _named_of_a_kill(saved: Saved, tree: Tree) -> tuple[str, str]:
    latest = tree.files.get(LATEST)
    if latest in saved.older:
        return "the old one removed first", (
            f"`latest` names {latest}, which is gone, and the new one is not named yet: for a "
            "moment there is no checkpoint. Remove what is too old last."
        )
    if latest is None:
        return "latest removed first", (
            "There is no `latest`: for a moment no checkpoint is named. A rename replaces the file "
            "that is there, so `latest` need not be removed."
        )
    return "latest moved first", (
        f"`latest` names {latest}, which is not there yet. `latest` moves when the folder has its "
        "name."
    )
