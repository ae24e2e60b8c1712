"""The loss curve as a file that grows by a line a step, and is whole whenever somebody looks.

A line is written at once or not at all, as far as that can be had; a run that goes on from a
checkpoint takes off what came after it. Lesson 08.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import NamedTuple

from course_lib.files import sync_file, write_whole

COLUMNS = ("step", "loss", "tokens", "norm", "lr", "validation")
REMEDY = "put back what was there, or move the file away and go on: the curve then begins anew"


class CurvePoint(NamedTuple):
    step: int
    loss: float
    tokens: int
    norm: float  # infinite where an overflow has cost the step
    lr: float
    validation: float | None = None  # loss of what is held back, after the step


class Curve:
    """loss.csv, open for more. `after` is the step that the run goes on from: what is in the file
    beyond it is taken off, all of it if that is 0. `digest` is that of the lines up to it, as the
    checkpoint has it; lines that are not those, or lack the last, are refused."""

    def __init__(self, path: Path, after: int = 0, digest: str | None = None):
        self.path = path
        self.points = kept = [point for point in read(path) if point.step <= after]
        if kept and kept[-1].step != after:
            raise ValueError(
                f"{path} ends at step {kept[-1].step}, and the checkpoint is of step {after}: "
                f"lines were lost; {REMEDY}"
            )
        self.whole = bool(kept) or not after  # or the file was taken away, and begins here
        head = ",".join(COLUMNS) + "\n"
        self._digest = hashlib.sha256("".join([head, *map(_line, kept)]).encode())
        if kept and digest not in (None, self.digest()):
            raise ValueError(
                f"{path}: its lines up to step {after} are not those that were written; {REMEDY}"
            )
        write_whole(path, "".join([head, *map(_line, kept)]))
        self._file = path.open("a", newline="")

    def digest(self) -> str:
        """Of all lines so far, for the checkpoint of the last step."""
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
    """The points of a loss.csv, a step after the other; a last line that was cut off in the middle
    is left out, and any other that is none is refused."""
    if not path.exists():
        return []
    raw = path.read_bytes()
    head, *lines = raw[: raw.rfind(b"\n") + 1].decode(errors="replace").split("\n")
    if lines and head != ",".join(COLUMNS):
        raise ValueError(
            f"{path} is no loss curve: its first line should be {','.join(COLUMNS)}; {REMEDY}"
        )
    points: list[CurvePoint] = []
    for number, line in enumerate(lines[:-1], start=2):
        points.append(_point(line, f"{path}, line {number}"))
        if len(points) > 1 and points[-1].step != points[-2].step + 1:
            raise ValueError(
                f"{path}, line {number}: step {points[-1].step} comes after step "
                f"{points[-2].step}; {REMEDY}"
            )
    return points


def _point(line: str, where: str) -> CurvePoint:
    try:
        step, loss, tokens, norm, lr, last = line.split(",")
        validation = float(last) if last else None
        point = CurvePoint(int(step), float(loss), int(tokens), float(norm), float(lr), validation)
        if all(map(math.isfinite, (point.loss, point.lr, validation or 0.0))):
            return point
        why = "a number in it is not finite"
    except ValueError:
        why = f"{','.join(COLUMNS)} should be {len(COLUMNS)} numbers"
    raise ValueError(f"{where}: {line[:80]!r} is no line of a loss curve ({why}); {REMEDY}")


def _line(point: CurvePoint) -> str:
    values = ("" if value is None else repr(value) for value in point)
    return ",".join(values) + "\n"  # repr loses no bit
