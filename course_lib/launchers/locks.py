"""Locks of extensions that are being built: which are held, and which a killed build has left.

torch makes a file `lock` beside what it builds and waits while it exists, without a word, without
a bound, at no use of a processor. Lesson 13.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Lock:
    """A lock of torch's; `held` by a process of this host, None where that cannot be seen."""

    path: Path
    held: bool | None

    def describe(self) -> str:
        """What to do about it."""
        name = f"{self.path.parent.name}/{self.path.name}"
        if self.held:
            return f"{name}: a process is building {self.path.parent.name}; wait for it"
        if self.held is None:
            return f"{name}: remove it if nothing builds {self.path.parent.name}"
        return f"{name}: no process of this host holds it; what waits for it waits for ever"


def extensions() -> Path:
    """Where torch and DeepSpeed build: TORCH_EXTENSIONS_DIR, or the user's cache."""
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        return Path(os.environ["TORCH_EXTENSIONS_DIR"])
    from torch.utils.cpp_extension import get_default_build_root

    return Path(get_default_build_root())


def locks(folder: str | Path | None = None) -> list[Lock]:
    """Every lock below the folder in which extensions are built."""
    top = extensions() if folder is None else Path(folder)
    found = sorted(path for path in top.rglob("lock") if path.is_file())
    return [Lock(path, _held(path)) for path in found]


def remove_stale(folder: str | Path | None = None) -> list[Path]:
    """Remove the locks that no process of this host holds. In a folder that several hosts share
    another host may: look there first."""
    stale = [lock.path for lock in locks(folder) if lock.held is False]
    for path in stale:
        path.unlink(missing_ok=True)
    return stale


def _held(path: Path) -> bool | None:
    """torch keeps the file open while it builds; Linux shows which files a process has open."""
    if not sys.platform.startswith("linux"):
        return None
    wanted, unseen = path.stat(), False
    for process in Path("/proc").glob("[0-9]*"):
        try:
            for entry in (process / "fd").iterdir():
                try:
                    opened = entry.stat()
                except OSError:
                    continue
                if (opened.st_dev, opened.st_ino) == (wanted.st_dev, wanted.st_ino):
                    return True
        except FileNotFoundError:
            continue  # it has ended in between
        except PermissionError:  # another user's: whether it holds the file is not ours to see
            unseen = unseen or _other_users(process, wanted.st_uid)
    return None if unseen else False


def _other_users(process: Path, owner: int) -> bool:
    """Whether a process that may not be looked into could have made a file of this owner."""
    try:
        return process.stat().st_uid == owner
    except OSError:
        return False
