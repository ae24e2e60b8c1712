"""A dict that notes which keys its reader asks it for, where, and with which default.

DeepSpeed's top-level keys stand in no model: its parser asks a dict for each of them. A parser that
is handed this dict tells its keys by itself, those of the installed release. Lesson 13.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ABSENT = object()  # the default of a key that was asked for without one


@dataclass
class Notes:
    """What was asked for: (path of the dict, key) → default, and the file that asked."""

    asked: dict[tuple[tuple[str, ...], str], object] = field(default_factory=dict)
    asker: dict[tuple[tuple[str, ...], str], str] = field(default_factory=dict)

    def add(self, path: tuple[str, ...], key: object, default: object = ABSENT) -> None:
        if not isinstance(key, str):
            return
        where = (path, key)
        if self.asked.get(where, ABSENT) is ABSENT:
            self.asked[where] = default
        self.asker.setdefault(where, _asking_file())

    def under(self, path: tuple[str, ...]) -> Iterator[str]:
        return (key for where, key in self.asked if where == path)


class Asking(dict):
    """A dict of a config, at `path` in it, that writes every question for a key into `notes`."""

    def __init__(self, content: dict, path: tuple[str, ...], notes: Notes) -> None:
        super().__init__(content)
        self.path, self.notes = path, notes

    def get(self, key, default=None):
        self.notes.add(self.path, key, default)
        return super().get(key, default)

    def pop(self, key, *default):
        self.notes.add(self.path, key, *default)
        return super().pop(key, *default)

    def __contains__(self, key) -> bool:
        self.notes.add(self.path, key)
        return super().__contains__(key)

    def __getitem__(self, key):
        self.notes.add(self.path, key)
        return super().__getitem__(key)

    def keys(self):
        return _Names(self)

    def __copy__(self) -> Asking:
        return Asking(dict(self), self.path, self.notes)


class _Names:
    """What `keys()` returns: `key in names` is a question too, a walk over the names is none."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking

    def __contains__(self, key) -> bool:
        return key in self.asking

    def __iter__(self) -> Iterator[str]:
        return iter(dict.keys(self.asking))

    def __len__(self) -> int:
        return len(self.asking)


def _asking_file() -> str:
    """The file that asks, from the name of its package on: helpers that pass a question on are
    left out."""
    frame = sys._getframe(1)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file != Path(__file__) and file.name != "config_utils.py":
            return within_package(file)
        frame = frame.f_back
    return ""


def within_package(file: Path) -> str:
    """/…/site-packages/deepspeed/runtime/config.py → deepspeed/runtime/config.py."""
    parts = file.parts
    if "site-packages" in parts:
        parts = parts[len(parts) - parts[::-1].index("site-packages") :]
    return "/".join(parts)
