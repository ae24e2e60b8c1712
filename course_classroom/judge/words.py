"""A check's texts on a Markdown page: its hints, and a text for each misconception.

A check raises `SAYS("mean", n=3)` and only names the recognised misconception. From lesson 00 on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from course_classroom.judge.finding import Finding

Look = Callable[[Mapping], object]  # at a rank's report

_ENTRY = re.compile(r"^- \*\*(.+?)\*\*: (.+)", re.DOTALL)
_ITEM = re.compile(r"^(?=- )", re.MULTILINE)
_NUMBER = re.compile(r" #\d+$")


class Words:
    """Findings from a list with items `- **name**: words`; further paragraphs are indented.

    `{n}` in the words is filled in when the entry is requested. A name with several wordings is
    written as `name #1`, `name #2`; learners see only the name.
    """

    def __init__(self, findings: str):
        self.entries: dict[str, str] = {}
        for item in _items(findings):
            entry = _ENTRY.match(item)
            if not entry or entry[1] in self.entries:
                raise ValueError(f"not one entry of the form `- **name**: words`: {item!r}")
            self.entries[entry[1]] = _text(entry[2])

    def __call__(self, entry: str, **about: object) -> Finding:
        """Return the entry as a Finding to raise."""
        return Finding(*self.of(entry, **about))

    def of(self, entry: str, **about: object) -> tuple[str, str]:
        """Return the name and the text of an entry."""
        return name_of(entry), self.entries[entry].format(**about)

    def refuse(self, holds: Mapping[str, object], **about: object) -> None:
        """Raise the first entry whose condition holds; `about` fills in its placeholders."""
        for entry, condition in holds.items():
            if condition:
                raise self(entry, **about)

    def refuse_each(
        self, reports: Iterable[Mapping], looks: Mapping[str, Look], **about: object
    ) -> None:
        """Raise the first entry that is true for the first such rank; placeholders are filled from
        `about`, then from the rank's report."""
        for rank, report in enumerate(reports):
            for entry, look in looks.items():
                if look(report):
                    raise self(entry, **{**report, "rank": rank, **about})


class Page(Words):
    """An exercise's page next to its check: title, points, text for a right answer, hints,
    findings.

    Texts that several exercises share have a page with only findings.
    """

    def __init__(self, check: str, name: str):
        """Read the page of a check; `check` is the `__file__` of that check."""
        self.path = Path(check).with_name(f"{name}.md")
        head, *sections = re.split(r"^## ", self.path.read_text(encoding="utf-8"), flags=re.M)
        parts = dict(section.split("\n", 1) for section in sections)
        super().__init__(parts.get("Findings", ""))
        title, *right = head.removeprefix("# ").strip().split("\n\n")
        points = right and re.fullmatch(r"\*(\d+) points?\*", right.pop(0))
        self.about = {  # fields of an Exercise or a Thought
            "name": self.path.stem,
            "title": title,
            "points": int(points[1]) if points else 0,
            "when_right": _text("\n\n".join(right)),
            "hints": tuple(_text(item[2:]) for item in _items(parts.get("Hints", ""))),
        }


def name_of(entry: str) -> str:
    """ "mean #2" -> "mean", the name that a learner sees."""
    return _NUMBER.sub("", entry)


def _items(text: str) -> list[str]:
    return [item for item in _ITEM.split(text) if item.strip()]


def _text(paragraphs: str) -> str:
    """Join paragraphs of Markdown, one line each."""
    return "\n".join(" ".join(one.split()) for one in paragraphs.strip().split("\n\n"))
