"""What a check has to say stands on a page, as Markdown: hints, and each misconception's words.

A check raises `SAYS("mean", n=3)` and says there nothing but which misconception it has met. From
lesson 00 on.
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
    """Findings, an item of a list each: `- **name**: words`, and more paragraphs indented.

    `{n}` in the words is filled in where the entry is asked for. A name that has several wordings
    stands as `name #1`, `name #2`; what a learner is told is the name alone.
    """

    def __init__(self, findings: str):
        self.entries: dict[str, str] = {}
        for item in _items(findings):
            entry = _ENTRY.match(item)
            if not entry or entry[1] in self.entries:
                raise ValueError(f"not one entry, `- **name**: words`: {item!r}")
            self.entries[entry[1]] = _text(entry[2])

    def __call__(self, entry: str, **about: object) -> Finding:
        """The entry as a Finding, to be raised."""
        return Finding(*self.of(entry, **about))

    def of(self, entry: str, **about: object) -> tuple[str, str]:
        """Name and words of an entry."""
        return name_of(entry), self.entries[entry].format(**about)

    def refuse(self, holds: Mapping[str, object], **about: object) -> None:
        """Raise the first entry whose condition holds; `about` fills in the words of all."""
        for entry, condition in holds.items():
            if condition:
                raise self(entry, **about)

    def refuse_each(
        self, reports: Iterable[Mapping], looks: Mapping[str, Look], **about: object
    ) -> None:
        """Raise the first entry that is true of the first rank of which one is; the rank's report
        fills in its words, where `about` does not."""
        for rank, report in enumerate(reports):
            for entry, look in looks.items():
                if look(report):
                    raise self(entry, **{**report, "rank": rank, **about})


class Page(Words):
    """An exercise's page beside its check: title, points, what is right, hints, findings.

    What several exercises share has a page of findings alone.
    """

    def __init__(self, check: str, name: str):
        """`check` is the `__file__` of the check whose page this is."""
        self.path = Path(check).with_name(f"{name}.md")
        head, *sections = re.split(r"^## ", self.path.read_text(encoding="utf-8"), flags=re.M)
        parts = dict(section.split("\n", 1) for section in sections)
        super().__init__(parts.get("Findings", ""))
        title, *right = head.removeprefix("# ").strip().split("\n\n")
        points = right and re.fullmatch(r"\*(\d+) points?\*", right.pop(0))
        self.about = {  # an Exercise's or a Thought's fields
            "name": self.path.stem,
            "title": title,
            "points": int(points[1]) if points else 0,
            "when_right": _text("\n\n".join(right)),
            "hints": tuple(_text(item[2:]) for item in _items(parts.get("Hints", ""))),
        }


def name_of(entry: str) -> str:
    """What the learner is told of `mean #2`: `mean`."""
    return _NUMBER.sub("", entry)


def _items(text: str) -> list[str]:
    return [item for item in _ITEM.split(text) if item.strip()]


def _text(paragraphs: str) -> str:
    """Paragraphs of Markdown, a line each."""
    return "\n".join(" ".join(one.split()) for one in paragraphs.strip().split("\n\n"))
