"""A ledger as a page: rows of equal calls with their sums, in text and in HTML.

Sums only, no times and no paths, so that a committed notebook shows the same table in every run.
Lesson 01 reads the first one.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple

HEADS = ("op", "axis", "phase", "count", "payload", "must", "moved", "call site")
NUMBERS = (3, 4, 5, 6)
MOVED = 6
CAPTION = "What this rank handed over, had to send, and sent (bytes)"


class Table(NamedTuple):
    """Rows of (op, axis, phase, count, payload, must, moved, call site), and their total."""

    rows: list[tuple]
    total: tuple  # count, payload, must, moved
    show_moved: bool = True

    def __str__(self) -> str:
        if not self.rows:
            return "no collective was recorded"
        lines = [self._shown(HEADS), *self._cells()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        right = {self._shown(HEADS).index(HEADS[i]) for i in self._numbers()}
        text = [
            "  ".join(
                cell.rjust(width) if i in right else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        return "\n".join([text[0], rule, *text[1:-1], rule, text[-1]])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{self}</p>"
        heads = self._shown(HEADS)
        right = {heads.index(HEADS[i]) for i in self._numbers()}

        def line(cells: list[str], tag: str) -> str:
            aligned = (
                f'<{tag} style="text-align:{"right" if i in right else "left"}">{escape(c)}</{tag}>'
                for i, c in enumerate(cells)
            )
            return f"<tr>{''.join(aligned)}</tr>"

        *body, total = self._cells()
        return (
            f"<table><caption>{CAPTION}</caption>"
            f"<thead>{line(heads, 'th')}</thead>"
            f"<tbody>{''.join(line(cells, 'td') for cells in body)}</tbody>"
            f"<tfoot>{line(total, 'th')}</tfoot></table>"
        )

    def _cells(self) -> list[list[str]]:
        total = ("total", "", "", *self.total, "")
        return [self._shown([_written(value) for value in row]) for row in (*self.rows, total)]

    def _shown(self, cells: tuple | list) -> list[str]:
        return [cell for i, cell in enumerate(cells) if self.show_moved or i != MOVED]

    def _numbers(self) -> list[int]:
        return [i for i in NUMBERS if self.show_moved or i != MOVED]


def _written(value: object) -> str:
    if value is None:
        return "not counted"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
