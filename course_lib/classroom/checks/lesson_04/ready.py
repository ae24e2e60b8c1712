"""Ranks that have loaded what the checks of lesson 04 run on them, before an answer comes to them.

The first import and the first backward take a while on a busy machine; no trial is charged for it.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.judge import CHECKS, Judge


def take(answer: Answer, judge: Judge) -> None:
    """Give the answer to fresh ranks that are ready for it."""
    judge.take(answer, f"{CHECKS}.lesson_04.trial")
