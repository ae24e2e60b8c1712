"""Ranks that have loaded what the checks of lesson 04 run on them, before an answer comes to them.

The first import and the first backward take a while on a busy machine; no trial is charged for it.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.crew import START_LIMIT

_LOAD = (
    'from course_lib.classroom.checks import bench; bench.part("lesson_04.trial").first_backward()'
)


def take(answer: Answer, judge: Judge) -> None:
    """Give the answer to fresh ranks that are ready for it."""
    judge.ready()
    judge.everywhere(lambda rank: _LOAD, START_LIMIT)
    judge.take(answer)
