"""A finding: what is wrong with an answer, by the name of the misconception. From lesson 00 on."""

from __future__ import annotations


class Finding(Exception):
    """What is wrong with an answer: the misconception's name, and words for the learner."""

    def __init__(self, name: str, text: str):
        super().__init__(text)
        self.name, self.text = name, text
