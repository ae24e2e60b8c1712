"""Ranks that hold the answer and have loaded what the check runs on them. Lesson 12.

What a rank loads at its first use takes a while on a busy machine; no trial is charged for it.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.crew import START_LIMIT


def take(answer: Answer, judge: Judge, part: str) -> None:
    """Give the answer to fresh ranks, and let each load `lesson_12.part`."""
    judge.take(answer)
    load = (
        "from course_lib.classroom.checks import bench; "
        f'bench.part("lesson_12.{part}").warm(); bench.watched(lambda: torch.zeros(2))'
    )
    judge.everywhere(lambda rank: load, START_LIMIT)
