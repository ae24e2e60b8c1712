"""The table of lesson 13: every topic of the five pages, in their order, as text, Markdown, HTML.

It speaks of the releases in `RELEASES`; where others are installed, the table says so. Lesson 13.
"""

from __future__ import annotations

import importlib.metadata
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from course_lib.then_and_now.row import VERDICTS, Row
from course_lib.then_and_now.rows import (
    choosing,
    engine,
    fsdp,
    launch,
    quantization,
    texts,
    trainer,
    weights,
)

# What the rows of today speak of: an installed release counts as far as its numbers go here.
RELEASES = {
    "torch": "2.13",
    "deepspeed": "0.19.8",
    "transformers": "5.23",
    "accelerate": "1.15",
}
PAGES: dict[str, tuple[Row, ...]] = {
    "DeepSpeed integration": launch.ROWS + choosing.ROWS + engine.ROWS + weights.ROWS,
    "Trainer": trainer.ROWS + fsdp.ROWS,
    "Quantization": quantization.ROWS,
    "Tokenizers": texts.TOKENIZERS,
    "Processors": texts.PROCESSORS,
}
HEADS = ("topic", "the page of 4.37", "verdict", "today", "where")


@dataclass(frozen=True, repr=False)
class Table:
    """Rows with the page that each is of. Prints as aligned text, and as HTML in a notebook."""

    rows: tuple[tuple[str, Row], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        return iter(self.rows)

    @property
    def counts(self) -> dict[str, int]:
        """Rows by verdict, all three."""
        return {v: sum(row.verdict == v for _, row in self.rows) for v in VERDICTS}

    def of(self, page: str | None = None, verdict: str | None = None) -> Table:
        """The rows of one page, of one verdict, or of both."""
        return Table(
            tuple(
                (of, row)
                for of, row in self.rows
                if page in (None, of) and verdict in (None, row.verdict)
            )
        )

    def table(self, width: int = 100) -> str:
        """Aligned text: a row's topic and verdict, then its sentences, wrapped to `width`."""
        most = max((len(row.topic) for _, row in self.rows), default=0)
        lines = []
        for page in dict.fromkeys(page for page, _ in self.rows):
            lines += [page, "-" * len(page)]
            for _, row in self.of(page):
                lines.append(f"{row.topic.ljust(most)}  {row.verdict}")
                for head, text in (("then", row.then), ("today", row.today)):
                    lines += _wrapped(f"{head}: {text}", width)
                lines += _wrapped(f"where: {'; '.join(row.where)}", width) if row.where else []
        return "\n".join([*lines, self.caption])

    def markdown(self) -> str:
        """A Markdown table under a heading for each page."""
        lines = []
        for page in dict.fromkeys(page for page, _ in self.rows):
            lines += [f"### {page}", "", f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
            for _, row in self.of(page):
                cells = (cell.replace("|", "\\|") for cell in _cells(row))
                lines.append(f"| {' | '.join(cells)} |")
            lines.append("")
        return "\n".join([*lines, self.caption])

    @property
    def caption(self) -> str:
        """How many rows there are of each verdict, and the releases that they speak of."""
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        releases = ", ".join(f"{name} {release}" for name, release in RELEASES.items())
        others = other_releases()
        more = f" Here other releases are installed: {'; '.join(others)}." if others else ""
        return f"{len(self)} rows: {counts}; today is {releases}.{more}"

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<Table, {self.caption}>"  # a row's probe has an address, which no output needs

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{head}</th>" for head in HEADS)
        body = ""
        for page in dict.fromkeys(page for page, _ in self.rows):
            body += f'<tr><th colspan="{len(HEADS)}">{escape(page)}</th></tr>'
            for _, row in self.of(page):
                cells = "".join(f"<td>{escape(cell)}</td>" for cell in _cells(row))
                body += f"<tr>{cells}</tr>"
        caption = f"<caption>{escape(self.caption)}</caption>"
        return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def table(page: str | None = None, verdict: str | None = None) -> Table:
    """The rows of one of `PAGES`, of one verdict, or all."""
    if page is not None and page not in PAGES:
        raise ValueError(f"page={page!r} is none of {', '.join(PAGES)}")
    if verdict is not None and verdict not in VERDICTS:
        raise ValueError(f"verdict={verdict!r} is none of {', '.join(VERDICTS)}")
    rows = tuple((name, row) for name, of_page in PAGES.items() for row in of_page)
    return Table(rows).of(page, verdict)


def other_releases() -> list[str]:
    """What is installed here in another release than the rows speak of, or not at all."""
    found = []
    for name, release in RELEASES.items():
        try:
            here = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            here = "not installed"
        if here.split("+")[0].split(".")[: release.count(".") + 1] != release.split("."):
            found.append(f"{name} {here}")
    return found


def _cells(row: Row) -> tuple[str, ...]:
    return row.topic, row.then, row.verdict, row.today, "; ".join(row.where)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="        ")
