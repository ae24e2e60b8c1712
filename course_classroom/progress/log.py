"""A learner's progress: one line of JSON for each check, hint and prediction, in a plain file.

Lines are only added, so an incomplete line does not affect the others. Lesson 00 shows the file,
and `course status` reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from course_lib.files import locked

FILE, MARK = "progress.jsonl", ".course"  # the mark makes a folder a workspace
PATIENCE = 5.0  # seconds to wait for another notebook that writes a line
# The outcomes of a check, each with a sign that a card, a table and a terminal all show.
NOT_ATTEMPTED, WRONG, RIGHT, NOT_JUDGED = "not attempted", "wrong", "right", "not judged"
MARKS = {NOT_ATTEMPTED: "○", WRONG: "✗", RIGHT: "✓", NOT_JUDGED: "–"}  # never rely on colour only
_FURTHER = {NOT_ATTEMPTED: 1, WRONG: 2, RIGHT: 3}  # any other outcome counts as nothing


@dataclass(frozen=True)
class Log:
    """The events of a progress file, and its unreadable lines."""

    events: list[dict] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)  # line numbers, from 1

    def of(self, kind: str, **same: object) -> list[dict]:
        """Return the events of one kind in order, with the given values."""
        found = (e for e in self.events if e["kind"] == kind)
        return [e for e in found if all(e.get(k) == v for k, v in same.items())]

    def best(self, exercise: str) -> dict | None:
        """Return the best check of an exercise, the earliest if several are equally good."""
        checks = self.of("check", exercise=exercise)
        return max(checks, key=_how_far) if checks else None


def _how_far(check: dict) -> tuple[int, int]:
    """Return a check's rank by outcome, then points; a wrong answer ranks higher than a blank."""
    return _FURTHER.get(check.get("outcome", ""), 0), check.get("points", 0)


class Progress:
    def __init__(self, workspace: Path):
        self.path = Path(workspace) / FILE

    def record(self, kind: str, **fact: object) -> str:
        """Add a line; return an empty string, or a sentence that states why this failed."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        line = json.dumps({"at": now, "kind": kind, **fact}, ensure_ascii=False)
        try:
            with self._alone() as file:
                # After an incomplete line, begin a new line.
                if file.tell() and not self._ends_well():
                    line = f"\n{line}"
                file.write(f"{line}\n".encode())
                file.flush()
        except OSError as error:
            return (
                f"Your progress was not written to {self.path.name} ({error.strerror or error}); "
                "everything else works. Free some space, or make the file writable, and run the "
                "cell again."
            )
        return ""

    def read(self) -> Log:
        """Read everything that was recorded; a missing file gives an empty log."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return Log()
        events, damaged = [], []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if isinstance(event, dict) and _sensible(event):
                events.append(event)
            else:
                damaged.append(number)
        return Log(events, damaged)

    @contextmanager
    def _alone(self) -> Iterator:
        with open(self.path, "ab") as file:
            if not locked(file, PATIENCE):
                raise OSError(0, f"another program held it for {PATIENCE:g} s")
            file.seek(0, os.SEEK_END)
            yield file

    def _ends_well(self) -> bool:
        with open(self.path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


_WORDS, _COUNTS = ("exercise", "outcome", "question"), ("points", "number")


def _sensible(event: dict) -> bool:
    """Return True if a notebook can have written this event, because users can edit the file."""
    if not isinstance(event.get("kind"), str):
        return False
    if any(type(event.get(name, "")) is not str for name in _WORDS):
        return False
    if any(type(event.get(name, 0)) is not int for name in _COUNTS):
        return False
    try:
        datetime.fromisoformat(event.get("at", "2000-01-01"))
    except (TypeError, ValueError):
        return False
    return True


def here(folder: Path | None = None) -> Progress | None:
    """Return the progress of the workspace that contains this folder; None outside of one."""
    try:
        start = (folder or Path.cwd()).resolve()
    except OSError:  # the folder itself was deleted
        return None
    for place in (start, *start.parents):
        if (place / MARK).is_dir():
            return Progress(place)
    return None
