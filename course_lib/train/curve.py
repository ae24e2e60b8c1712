"""The loss curve as a file that grows by a line per step and is complete at any time.

As far as possible, a line is written completely or not at all. A resumed run removes the lines
after its checkpoint. Lesson 08.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import NamedTuple

from course_lib.files import sync_file, write_whole

COLUMNS = ("step", "loss", "tokens", "norm", "lr", "validation")
REMEDY = "restore the file, or move it away and continue with a new curve"


class CurvePoint(NamedTuple):
    step: int
    loss: float
    tokens: int
    norm: float  # infinite if an overflow skipped the step
    lr: float
    validation: float | None = None  # loss of what is held back, after the step


class Curve:
    """loss.csv, open for appending. The run continues from step `after`; later lines are removed
    (all lines if it is 0). `digest` is the checkpoint's hash of the lines up to that step. If they
    differ or the last of them is missing, the file is refused."""

    def __init__(self, path: Path, after: int = 0, digest: str | None = None):
        self.path = path
        self.points = kept = [point for point in read(path) if point.step <= after]
        if kept and kept[-1].step != after:
            raise ValueError(
                f"{path} ends at step {kept[-1].step}, but the checkpoint is of step {after}, so "
                f"lines were lost; {REMEDY}"
            )
        self.whole = bool(kept) or not after  # otherwise the file was moved away, so it starts here
        head = ",".join(COLUMNS) + "\n"
        self._digest = hashlib.sha256("".join([head, *map(_line, kept)]).encode())
        if kept and digest not in (None, self.digest()):
            raise ValueError(f"{path} has changed in the lines up to step {after}; {REMEDY}")
        write_whole(path, "".join([head, *map(_line, kept)]))
        self._file = path.open("a", newline="")

    def digest(self) -> str:
        """Hash all lines so far, for the checkpoint of the last step."""
        return self._digest.hexdigest()

    def add(self, point: CurvePoint) -> None:
        self._file.write(_line(point))
        self._file.flush()
        self._digest.update(_line(point).encode())
        self.points.append(point)

    def to_disk(self) -> None:
        sync_file(self._file)

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[CurvePoint]:
    """Read the points of a loss.csv in order. An incomplete last line is ignored; any other invalid
    line is refused."""
    if not path.exists():
        return []
    raw = path.read_bytes()
    head, *lines = raw[: raw.rfind(b"\n") + 1].decode(errors="replace").split("\n")
    if lines and head != ",".join(COLUMNS):
        raise ValueError(
            f"{path} is not a loss curve, whose first line is {','.join(COLUMNS)}; {REMEDY}"
        )
    points: list[CurvePoint] = []
    for number, line in enumerate(lines[:-1], start=2):
        points.append(_point(line, f"{path}, line {number}"))
        if len(points) > 1 and points[-1].step != points[-2].step + 1:
            raise ValueError(
                f"{path}, line {number}, has step {points[-1].step} after step {points[-2].step}; "
                f"{REMEDY}"
            )
    return points


def _point(line: str, where: str) -> CurvePoint:
    try:
        step, loss, tokens, norm, lr, last = line.split(",")
        validation = float(last) if last else None
        point = CurvePoint(int(step), float(loss), int(tokens), float(norm), float(lr), validation)
        if all(map(math.isfinite, (point.loss, point.lr, validation or 0.0))):
            return point
        why = "a number is not finite"
    except ValueError:
        why = f"{','.join(COLUMNS)} must be {len(COLUMNS)} numbers"
    raise ValueError(f"{where} is not a line of a loss curve ({line[:80]!r}, {why}); {REMEDY}")


def _line(point: CurvePoint) -> str:
    values = ("" if value is None else repr(value) for value in point)
    return ",".join(values) + "\n"  # repr is exact
