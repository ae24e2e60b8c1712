"""A folder of checkpoints: each is whole or not there, `latest` names the last, and K of them stay.

What is being written goes by a name that begins with a dot; one rename makes it a checkpoint, and
`latest` moves after that. Whatever is left of a save that was cut short is swept away. Lesson 08.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from pathlib import Path

from course_lib.checkpoint.shared_errors import about
from course_lib.files import sync_folder, write_whole
from course_lib.pretrained.header import CheckpointError

LATEST, RECORD, FORM = "latest", "training.json", 3
NAME = re.compile(r"step-\d{6,}")
LEFT = (".step-*.part", ".step-*.replaced", f".~{LATEST}-*")  # by a save that was cut short


class NothingThere(CheckpointError):
    """A folder in which no checkpoint was ever saved."""


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


def last(top: Path | str) -> Path:
    """The checkpoint that `latest` names, once it is known to be whole."""
    top = Path(top)
    restore(top)
    try:
        name = (top / LATEST).read_bytes()[:200].decode(errors="replace").strip()
    except OSError as error:
        if whole(top) or not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise CheckpointError(
                f"{top / LATEST}, which names the last checkpoint, cannot be read: "
                f"{error.strerror}. {_choice(top)}"
            ) from error
        raise NothingThere(f"there is no checkpoint in {top}") from error
    path = top / name
    if not NAME.fullmatch(name) or not (path / RECORD).exists():
        raise CheckpointError(
            f"{top / LATEST} names {name[:60]!r}, and no whole checkpoint is there. {_choice(top)}"
        )
    return path


def _choice(top: Path) -> str:
    names = ", ".join(path.name for path in whole(top))
    if not names:
        return "There is no whole one; begin anew, in another folder"
    return f"Whole ones: {names}; write the name of one of them into {LATEST}"


def remedy(path: Path) -> str:
    """What to do where this checkpoint cannot be used."""
    before = [other.name for other in whole(path.parent) if number_of(other) < number_of(path)]
    if not before:
        return "no checkpoint is before it, so begin anew, in another folder"
    return f"to go on from the one before it, write {before[-1]} into {path.parent / LATEST}"


class Claim:
    """Whoever saves into a folder of checkpoints does so alone: the kernel's lock on the folder, of
    which a killed process leaves nothing. Where a file system has no locks, there is none."""

    def __init__(self, top: Path):
        self.top, self.held = top, False
        self._file: int | None = None

    def take(self) -> None:
        """Claim the folder, which is made where it is missing."""
        with about(self.top):
            if not self.top.is_dir():
                self.top.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.top, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise CheckpointError(
                f"{self.top}: a checkpoint is being saved there at this moment, by another run or "
                "by an earlier save of this one; wait for that, or name a folder of its own"
            ) from error
        except OSError:
            pass  # no locks here: whoever calls sees to it that one run writes
        self.held = True

    def release(self) -> None:
        self.held = False
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Claim:
        self.take()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def part_of(top: Path, step: int) -> Path:
    """Where a checkpoint grows."""
    return top / f".{named(step)}.part"


def _replaced(final: Path) -> Path:
    return final.with_name(f".{final.name}.replaced")


def begin(top: Path, step: int) -> Path:
    """An empty folder for a checkpoint to grow in; what others were cut short in goes. The caller
    has claimed the folder."""
    with about(top):
        _swept(top)
    part = part_of(top, step)
    with about(part):
        part.mkdir()
    return part


def publish(top: Path, step: int, keep: int) -> Path:
    """Make a checkpoint of what has grown, name it in `latest`, let those before the last K go.

    An error leaves those that were there, and `latest`, as they were."""
    part, final = part_of(top, step), top / named(step)
    with about(part):
        sync_folder(part)
    with about(top / LATEST):
        before = _content(top / LATEST)
    try:
        with about(final):
            if final.exists():  # of a run that went on from before it
                final.rename(_replaced(final))
            part.rename(final)
            sync_folder(top)
        with about(top / LATEST):
            write_whole(top / LATEST, f"{final.name}\n")
    except BaseException:
        _undo(part, final, before)
        raise
    shutil.rmtree(_replaced(final), ignore_errors=True)
    # What a run that was gone back on has left after this step is not ours to remove.
    earlier = [path for path in whole(top) if number_of(path) <= step]
    for old in earlier[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def _undo(part: Path, final: Path, before: bytes | None) -> None:
    """Take a checkpoint back that `publish` could not make the last one."""
    latest = final.with_name(LATEST)
    with contextlib.suppress(OSError):  # `latest` has moved, and only its folder was not synced
        if before is None:
            latest.unlink()
        elif latest.read_bytes() != before:
            write_whole(latest, before)
    with contextlib.suppress(OSError):
        if not part.exists() and _content(latest) == before:
            final.rename(part)
    _restored(final.parent)


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def discard(top: Path, step: int) -> None:
    """Leave nothing of a save that went wrong; nor of the folder, where nothing was ever saved."""
    shutil.rmtree(part_of(top, step), ignore_errors=True)
    with contextlib.suppress(OSError):
        top.rmdir()


def restore(top: Path) -> None:
    """Undo a replacement that ended between its two renames: no folder has that name."""
    if top.is_dir() and any(top.glob(LEFT[1])):
        with contextlib.suppress(CheckpointError), Claim(top):  # else it is going on just now
            _restored(top)


def sweep(top: Path) -> None:
    """Take away what a run that was killed in the middle of a save has left."""
    if top.is_dir():
        with Claim(top):
            _swept(top)


def _restored(top: Path) -> None:
    for old in top.glob(LEFT[1]):
        final = top / old.name[1 : -len(".replaced")]
        if not final.exists():
            old.rename(final)


def _swept(top: Path) -> None:
    _restored(top)
    for pattern in LEFT:  # and no other file: a folder may hold what is not ours
        for entry in top.glob(pattern):
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()
