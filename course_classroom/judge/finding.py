"""Exceptions that end a check: a finding (an error in the answer), or nothing judged.

The first names a misconception; the second makes no statement about the answer. From lesson 00 on.
"""

from __future__ import annotations

_HANGS = ("not called by all", "deadlock", "no end")
_APART = "the ranks disagree about a collective"  # a different rank has already made a later call


class Finding(Exception):
    """An error in an answer: the misconception's name, and words for the learner."""

    def __init__(self, name: str, text: str):
        super().__init__(text)
        self.name, self.text = name, text

    @property
    def hangs(self) -> bool:
        """Return True if the ranks of a real machine would wait until a timeout."""
        return self.name in _HANGS or (self.name == "raised" and _APART in self.text)


class NotJudged(Exception):
    """The reason why an answer cannot be judged now, such as a machine that is too busy."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text
