"""What a check has to say, as prose in one place: each misconception's name, then its words.

A check raises `SAYS("mean", n=3)` and says there nothing but which misconception it has met. From
lesson 01 on.
"""

from __future__ import annotations

import re
import textwrap

from course_lib.classroom.checks.finding import Finding

_ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)
_NUMBER = re.compile(r" #\d+$")


class Words:
    """A block of entries, `name: words`; a line that goes on with an entry is indented.

    `{n}` in the words is filled in where the entry is asked for. A name that has several wordings
    stands as `name #1`, `name #2`; what a learner is told is the name alone.
    """

    def __init__(self, block: str):
        self.entries: dict[str, str] = {}
        for entry in _ENTRY.split(textwrap.dedent(block).strip("\n"))[1:]:
            name, colon, text = entry.partition(": ")
            if not colon or name in self.entries:
                raise ValueError(f"not one entry, `name: words`: {entry!r}")
            self.entries[name] = "\n".join(
                " ".join(paragraph.split()) for paragraph in text.split("\n\n")
            )

    def __call__(self, entry: str, **about: object) -> Finding:
        """The entry as a Finding, to be raised."""
        return Finding(*self.of(entry, **about))

    def of(self, entry: str, **about: object) -> tuple[str, str]:
        """Name and words of an entry."""
        return _NUMBER.sub("", entry), self.entries[entry].format(**about)
