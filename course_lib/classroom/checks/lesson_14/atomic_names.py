"""Why a state that a crash has left cannot be gone on from, and the mistake that leaves it.

A job that starts again reads `latest`, and the files of the folder that it names; no folder with
the name of a checkpoint may be there and not whole. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from course_lib.classroom import agreement
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

LATEST = "latest"


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
        held, latest = tree.there(self.name), tree.files.get(LATEST)
        other = [file for file in self.pieces if held.get(file) != self.pieces[file]]
        file = other[0] if other else ""
        stay = [name for name in (*self.older, self.name) if name in tree.folders]
        wanted = [*self.older, self.name][-self.keep :]
        old = {data: path for path, data in self.before.items() if parent(path) in self.older}
        too_old = {data: path for data, path in old.items() if parent(path) not in wanted}
        hidden = [path for path, data in tree.files.items() if data in too_old]
        looks = {
            "latest not moved": latest != self.name,
            "leftovers of a killed save": set(held) - set(self.pieces),
            "not saved #1": set(held) != set(self.pieces),
            "not saved #2": other,
            "older ones stay": len(stay) > self.keep,
            "too few stay": stay != wanted,
            "an old one under another name": hidden,
        }
        SAYS.refuse(
            looks,
            when=self.when,
            latest=latest,
            name=self.name,
            names=sorted(held),
            pieces=len(self.pieces),
            file=file,
            held=held.get(file),
            data=self.pieces.get(file),
            keep=self.keep,
            stay=f"{agreement.listed(stay)} {agreement.verb('is', len(stay))}",
            path=hidden[0] if hidden else "",
            was=too_old[tree.files[hidden[0]]] if hidden else "",
        )


def refuse(saved: Saved, crash: Crash, done: Sequence[Op]) -> None:
    """A Finding where a job could not go on from what this crash has left."""
    tree, blamed = crash.tree, crash.lost or crash.alone
    latest, torn = tree.files.get(LATEST), saved.torn(tree)
    names = (saved.name, *saved.older)
    if latest in names and saved.is_whole(tree, latest) and not torn:
        return
    how = f"{'The power fails' if crash.power else 'A kill comes'} {_after(done)}, {saved.when}. "
    if crash.lost:
        how += f"What has not reached the disk: {_told(crash.lost)}. "
    elif crash.alone:
        how += f"Of what was not synced this alone has reached the disk: {_told(crash.alone)}. "
    made = [op for op in done if op.kind in (MAKE, CREATE)]
    gone = [op for op in done if op.kind == REMOVE and op.path in saved.older]
    contents = crash.lost is not None and crash.lost.kind == CONTENT
    of_a_piece = blamed is not None and blamed.path.rpartition("/")[2].startswith("rank-")
    lost_name = latest in saved.older and latest not in tree.folders
    looks = {
        "written in place": torn == saved.name and any(inside(op.path, torn) for op in made),
        "latest written in place": latest not in names and any(op.path == LATEST for op in made),
        "an old one removed in pieces": torn in saved.older,
    }
    if crash.power:
        looks |= {
            "removed before it was replaced": gone and lost_name,
            "file not synced": contents and of_a_piece,
            "latest not synced": contents,
            "folder not synced": torn == saved.name,
            "latest before the folder": True,
        }
    else:
        looks |= {
            "the old one removed first": latest in saved.older,
            "latest removed first": latest is None,
            "latest moved first": True,
        }
    left, count = len(tree.there(torn)), len(Tree(saved.before).there(torn))
    about = {"latest": latest, "torn": torn, "left": left, "count": count}
    SAYS.refuse(looks, how=how, name=saved.name, **about)


def _after(done: Sequence[Op]) -> str:
    return f"after rank {done[-1].rank}'s {_told(done[-1])}" if done else "before the first step"


def _told(op: Op) -> str:
    more = f" to {op.other}" if op.kind == RENAME else ""
    kind = {CREATE: "write (the entry)", CONTENT: "write (the contents)"}.get(op.kind, op.kind)
    return f"{kind} {op.path}{more}"
