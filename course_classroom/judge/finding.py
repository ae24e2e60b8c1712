"""How a check breaks off: a finding, which is what is wrong with an answer, or nothing judged.

The first names a misconception, the second says nothing about the answer. From lesson 00 on.
"""

from __future__ import annotations

_HANGS = ("not called by all", "deadlock", "no end")
_APART = "the ranks disagree about a collective"  # another rank is at a later one already


class Finding(Exception):
    """What is wrong with an answer: the misconception's name, and words for the learner."""

    def __init__(self, name: str, text: str):
        super().__init__(text)
        self.name, self.text = name, text

    @property
    def hangs(self) -> bool:
        """Whether on a real machine the ranks would wait until a time-out."""
        return self.name in _HANGS or (self.name == "raised" and _APART in self.text)


class NotJudged(Exception):
    """Why nothing can be said about an answer now, such as a machine that is too busy to try it."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text
