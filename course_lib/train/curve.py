"""The loss curve as a file that grows by a line a step, and is whole whenever somebody looks.

A line is written at once or not at all, as far as that can be had; a run that goes on from a
checkpoint takes off what came after it. Lesson 08.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import NamedTuple

COLUMNS = ("step", "loss", "tokens", "norm", "lr")


class Point(NamedTuple):
    step: int
    loss: float
    tokens: int
    norm: float
    lr: float


class Curve:
    """loss.csv, open for more. `after` is the step that the run goes on from: what is in the file
    beyond it is taken off, all of it if that is 0."""

    def __init__(self, path: Path, after: int = 0):
        self.path = path
        kept = [point for point in read(path) if point.step <= after]
        new = path.with_name(f".{path.name}.new")
        with new.open("w", newline="") as file:
            file.write(",".join(COLUMNS) + "\n")
            file.writelines(map(_line, kept))
            _to_disk(file)
        new.replace(path)
        self._file = path.open("a", newline="")

    def add(self, point: Point) -> None:
        self._file.write(_line(point))
        self._file.flush()

    def to_disk(self) -> None:
        _to_disk(self._file)

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[Point]:
    """The points of a loss.csv; a last line that was cut off in the middle is left out."""
    if not path.exists():
        return []
    text = path.read_text()
    rows = csv.reader(text[: text.rfind("\n") + 1].splitlines())
    if tuple(next(rows, COLUMNS)) != COLUMNS:
        raise ValueError(f"{path} is no loss curve: its first line should be {','.join(COLUMNS)}")
    return [Point(int(s), float(x), int(t), float(n), float(lr)) for s, x, t, n, lr in rows]


def _line(point: Point) -> str:
    return ",".join(repr(value) for value in point) + "\n"  # repr loses no bit


def _to_disk(file) -> None:
    file.flush()
    os.fsync(file.fileno())
