"""A folder of checkpoints: each is whole or not there, `latest` names the last, and K of them stay.

What is being written goes by a name that begins with a dot; one rename makes it a checkpoint, and
`latest` moves after that. Whatever is left of a save that was cut short is swept away. Lesson 08.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from course_lib.files import sync_folder, write_whole

LATEST, RECORD, FORM = "latest", "training.json", 3
NAME = re.compile(r"step-\d{6,}")


def named(step: int) -> str:
    return f"step-{step:06d}"


def number_of(path: Path) -> int:
    return int(path.name.partition("-")[2])


def whole(top: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest first."""
    inside = top.iterdir() if top.is_dir() else ()
    return sorted(
        (entry for entry in inside if NAME.fullmatch(entry.name) and (entry / RECORD).exists()),
        key=number_of,
    )


def remedy(path: Path) -> str:
    """What to do where this checkpoint cannot be used."""
    before = [other.name for other in whole(path.parent) if number_of(other) < number_of(path)]
    if not before:
        return "no checkpoint is before it, so begin a run anew, with another --out"
    return f"to go on from the one before it, write {before[-1]} into {path.parent / LATEST}"


def part_of(top: Path, step: int) -> Path:
    """Where a checkpoint grows."""
    return top / f".{named(step)}.part"


def _replaced(final: Path) -> Path:
    return final.with_name(f".{final.name}.replaced")


def begin(top: Path, step: int) -> Path:
    """An empty folder for a checkpoint to grow in; what others were cut short in goes."""
    top.mkdir(parents=True, exist_ok=True)
    sweep(top)
    part = part_of(top, step)
    part.mkdir()
    return part


def publish(top: Path, step: int, keep: int) -> Path:
    """Make a checkpoint of what has grown, name it in `latest`, let those before the last K go."""
    part, final = part_of(top, step), top / named(step)
    if final.exists():  # of a run that went on from before it
        final.rename(_replaced(final))
    part.rename(final)
    shutil.rmtree(_replaced(final), ignore_errors=True)
    sync_folder(top)
    write_whole(top / LATEST, f"{final.name}\n")
    # What a run that was gone back on has left after this step is not ours to remove.
    before = [path for path in whole(top) if number_of(path) <= step]
    for old in before[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def restore(top: Path) -> None:
    """Undo a replacement that ended between its two renames: no folder has that name."""
    for old in top.glob(".step-*.replaced") if top.is_dir() else ():
        final = top / old.name[1 : -len(".replaced")]
        if not final.exists():
            old.rename(final)


def sweep(top: Path) -> None:
    """Take away what a run that was killed in the middle of a save has left."""
    restore(top)
    for entry in top.iterdir() if top.is_dir() else ():
        if entry.name.startswith("."):
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()
