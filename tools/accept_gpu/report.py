"""The file with the results, completely rewritten after each stage and each part of a stage.

A command that is killed leaves the results so far. Names of people and machines are removed from
every text. No lesson derives it.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from course_classroom.doctor import privacy
from course_lib.files import write_whole

WIDEST = 200  # maximum characters of a table row


class Report:
    """A document as JSON, and its table of stages as text if a file is named for it."""

    def __init__(self, file: Path, document: dict[str, Any], table: Path | None = None):
        self.file, self.table = file, table
        self.document = {**document, "stages": [], "parts": {}}
        self._lock = threading.Lock()  # stages run in parallel
        self.update()  # fail now rather than after an hour if the folder is not writable

    def update(self, **changes: Any) -> None:
        with self._lock:
            self.document.update(changes)
            self._write()

    def stage(self, result: dict[str, Any]) -> None:
        """Keep the result of a completed stage."""
        with self._lock:
            self.document["stages"].append(result)
            self._write()

    def part(self, stage: str, name: str, found: dict[str, Any]) -> None:
        """Keep the results of one part of a stage so far; later results replace them."""
        with self._lock:
            self.document["parts"][f"{stage}: {name}"] = found
            self._write()

    def as_table(self) -> str:
        """Format one row per stage, followed by one row for each of its parts."""
        lines = [f"{'stage':36} {'how':8} {'s':>5}  what"]
        parts = dict(self.document["parts"])
        for stage in self.document["stages"]:
            lines.append(_row(stage["name"], stage))
            for name in [one for one in parts if one.startswith(f"{stage['name']}: ")]:
                lines.append(_row(f"  {name.partition(': ')[2]}", parts.pop(name)))
        lines += [_row(name, found) for name, found in parts.items()]  # their stage has not ended
        return "\n".join(lines) + "\n"

    def _write(self) -> None:
        self.document = privacy.scrubbed(self.document, privacy.of_this_machine())
        text = json.dumps(self.document, indent=1, ensure_ascii=False)
        write_whole(self.file, text + "\n")
        if self.table is not None:
            write_whole(self.table, self.as_table())


def _row(name: str, found: dict[str, Any]) -> str:
    how = "ok" if found["ok"] else "AMISS"
    if found["ok"] and found.get("left_out"):
        how = "part" if found.get("seconds") else "not run"
    seconds = f"{found['seconds']:5.0f}" if "seconds" in found else " " * 5
    return f"{name[:36]:36} {how:8} {seconds}  {found['found']}"[:WIDEST]


def say(text: str) -> None:
    for line in text.splitlines():
        print(f"[accept-gpu] {line}", file=sys.stderr, flush=True)
