"""Tables for terminals of any width: a table that is too wide is printed as wrapped text.

Numbers are never cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

NONE = "–"  # an empty cell, omitted in a row of words


@dataclass(frozen=True)
class Column:
    """A column: `right` aligns cells to the right, and `wraps` allows multi-line cells."""

    name: str
    right: bool = False
    wraps: bool = False


def show(console: Console, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print the rows as a table, or as words if the console is too narrow for a table."""
    rows = list(rows)
    table = Table(box=box.SIMPLE, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for i, column in enumerate(columns):
        widest = max(map(len, [column.name, *(row[i] for row in rows)]))
        side, ratio = "right" if column.right else "left", 1 if column.wraps else None
        least = None if column.wraps else widest
        table.add_column(column.name, justify=side, min_width=least, ratio=ratio)
    for row in rows:
        table.add_row(*map(Text, row))
    wide = console.options.update(max_width=10_000)
    if Measurement.get(console, wide, table).minimum <= console.width:
        console.print(table)
        return
    for row in rows:
        cells = [(column, cell) for column, cell in zip(columns, row, strict=True) if cell != NONE]
        name = " ".join(cell for column, cell in cells if column.wraps or not column.name)
        plain = [(column.name, cell) for column, cell in cells if not column.wraps]
        others = [f"{title} {cell}" for title, cell in plain if title]
        console.print(Text("; ".join(filter(None, [name, ", ".join(others)]))))
    console.print()
