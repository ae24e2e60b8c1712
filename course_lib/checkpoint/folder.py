"""A folder of checkpoints: each is complete or absent, and `latest` names the last of those kept.

During writing, a checkpoint's name begins with a dot. One rename publishes it, and `latest` is
updated afterwards. Remains of interrupted saves are removed. Lesson 08.
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
LEFT = (".step-*.part", ".step-*.replaced", f".~{LATEST}-*")  # after an interrupted save


class NothingThere(CheckpointError):
    """The error for a folder that never contained a checkpoint."""


def named(step: int) -> str:
    return f"step-{step:06d}"


def number_of(path: Path) -> int:
    return int(path.name.partition("-")[2])


def whole(top: Path) -> list[Path]:
    """List the checkpoints in a folder, oldest first."""
    inside = top.iterdir() if top.is_dir() else ()
    return sorted(
        (entry for entry in inside if NAME.fullmatch(entry.name) and (entry / RECORD).exists()),
        key=number_of,
    )


def last(top: Path | str) -> Path:
    """Return the checkpoint that `latest` names, after checking that it is complete."""
    top = Path(top)
    restore(top)
    try:
        name = (top / LATEST).read_bytes()[:200].decode(errors="replace").strip()
    except OSError as error:
        if whole(top) or not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise CheckpointError(
                f"{top / LATEST}, which names the last checkpoint, cannot be read "
                f"({error.strerror}). {_choice(top)}"
            ) from error
        raise NothingThere(f"there is no checkpoint in {top}") from error
    path = top / name
    if not NAME.fullmatch(name) or not (path / RECORD).exists():
        raise CheckpointError(
            f"{top / LATEST} names {name[:60]!r}, which is no complete checkpoint. {_choice(top)}"
        )
    return path


def _choice(top: Path) -> str:
    names = ", ".join(path.name for path in whole(top))
    if not names:
        return "There is no complete checkpoint; start again in a different folder"
    return f"These checkpoints are complete: {names}. Write the name of one into {LATEST}"


def remedy(path: Path) -> str:
    """Suggest a remedy if this checkpoint cannot be used."""
    before = [other.name for other in whole(path.parent) if number_of(other) < number_of(path)]
    if not before:
        return "there is no earlier checkpoint, so start again in a different folder"
    return f"to continue from the previous one, write {before[-1]} into {path.parent / LATEST}"


class Claim:
    """The exclusive right to save into a folder of checkpoints: the kernel's lock on the folder,
    which disappears with a killed process. File systems without locks give no such protection."""

    def __init__(self, top: Path):
        self.top, self.held = top, False
        self._file: int | None = None

    def take(self) -> None:
        """Claim the folder; it is created if it is missing."""
        with about(self.top):
            if not self.top.is_dir():
                self.top.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.top, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise CheckpointError(
                f"{self.top}: a different run, or an earlier save of this run, is saving a "
                "checkpoint there at this moment. Wait for it, or name a separate folder"
            ) from error
        except OSError:
            pass  # no locks here: the caller ensures that only one run writes
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
    """Return the folder in which a checkpoint is written."""
    return top / f".{named(step)}.part"


def _replaced(final: Path) -> Path:
    return final.with_name(f".{final.name}.replaced")


def begin(top: Path, step: int) -> Path:
    """Create an empty folder for a new checkpoint, and remove the remains of interrupted saves. The
    caller must have claimed `top`."""
    with about(top):
        _swept(top)
    part = part_of(top, step)
    with about(part):
        part.mkdir()
    return part


def publish(top: Path, step: int, keep: int) -> Path:
    """Publish the written folder, name it in `latest`, and keep only the last `keep` checkpoints.
    On an error, the earlier checkpoints and `latest` are unchanged."""
    part, final = part_of(top, step), top / named(step)
    with about(part):
        sync_folder(part)
    with about(top / LATEST):
        before = _content(top / LATEST)
    try:
        with about(final):
            if final.exists():  # by a run that continued from an earlier step
                final.rename(_replaced(final))
            part.rename(final)
            sync_folder(top)
        with about(top / LATEST):
            write_whole(top / LATEST, f"{final.name}\n")
    except BaseException:
        _undo(part, final, before)
        raise
    shutil.rmtree(_replaced(final), ignore_errors=True)
    # Later checkpoints are left from a run before it went back, and are not ours to remove.
    earlier = [path for path in whole(top) if number_of(path) <= step]
    for old in earlier[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def _undo(part: Path, final: Path, before: bytes | None) -> None:
    """Withdraw a checkpoint that `publish` could not finish publishing."""
    latest = final.with_name(LATEST)
    with contextlib.suppress(OSError):  # `latest` has moved, but its folder was not synced
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
    """Delete all files of a failed save, and `top` if it is then empty."""
    shutil.rmtree(part_of(top, step), ignore_errors=True)
    with contextlib.suppress(OSError):
        top.rmdir()


def restore(top: Path) -> None:
    """Undo a replacement that was interrupted between its two renames."""
    if top.is_dir() and any(top.glob(LEFT[1])):
        with contextlib.suppress(CheckpointError), Claim(top):  # otherwise it is in progress
            _restored(top)


def sweep(top: Path) -> None:
    """Remove the remains of a run that was killed during a save."""
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
    for pattern in LEFT:  # no other files, since a folder may contain foreign files
        for entry in top.glob(pattern):
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()
