"""The exercises of each lesson and their points, read from the table at the lesson's end.

The checks know it too, but they load torch; a look at one's progress has no use for that. Lesson 00
points to `course status`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_ROW = re.compile(r"\]\(\.\./exercises/\w+/(\w+)\.ipynb\) \| (\d+) \| ")


class Listed(NamedTuple):
    """A row of a lesson's table."""

    name: str
    points: int


def catalogue(root: Path) -> dict[str, list[Listed]]:
    """The exercises of each lesson, "00" to the last, in the order of its table."""
    return {
        path.name[:2]: [
            Listed(name, int(points))
            for name, points in _ROW.findall(path.read_text(encoding="utf-8"))
        ]
        for path in sorted(root.glob("notebooks/[0-9][0-9]_*.ipynb"))
    }
