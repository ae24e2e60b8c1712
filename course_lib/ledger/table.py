"""A ledger as text: rows of equal calls with their sums.

It has sums but no times or paths, so a committed notebook shows the same table in every run. Lesson
01 reads the first table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

HEADS = ("op", "axis", "phase", "count", "payload", "must", "moved", "call site")
WORDS = ("op", "axis", "phase", "call site")


class Table(NamedTuple):
    """Rows of (op, axis, phase, count, payload, must, moved, call site), and their total."""

    rows: list[tuple]
    total: tuple  # count, payload, must, moved
    show_moved: bool = True

    def __repr__(self) -> str:
        if not self.rows:
            return "no collective was recorded"
        shown = [i for i, head in enumerate(HEADS) if self.show_moved or head != "moved"]
        lines = [HEADS, *self.rows, ("total", "", "", *self.total, "")]
        right = [at for at, i in enumerate(shown) if HEADS[i] not in WORDS]
        text = list(aligned([[_written(line[i]) for i in shown] for line in lines], right))
        rule = "-" * max(map(len, text))
        return "\n".join([text[0], rule, *text[1:-1], rule, text[-1]])


def aligned(lines: Sequence[Sequence[str]], right: Collection[int]) -> Iterator[str]:
    """Yield lines with their cells in columns; columns in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _written(value: object) -> str:
    if value is None:
        return "not counted"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
