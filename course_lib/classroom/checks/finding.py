"""How a check breaks off: a finding, which is what is wrong with an answer, or nothing judged.

The first names a misconception, the second says nothing about the answer. From lesson 00 on.
"""

from __future__ import annotations


class Finding(Exception):
    """What is wrong with an answer: the misconception's name, and words for the learner."""

    def __init__(self, name: str, text: str):
        super().__init__(text)
        self.name, self.text = name, text


class NotJudged(Exception):
    """Why nothing can be said about an answer now, such as a machine that is too busy to try it."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text
