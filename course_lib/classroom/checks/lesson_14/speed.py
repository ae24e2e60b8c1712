"""`streamed_speed` of lesson 14: what streamed weights make of a token step.

Cases are drawn anew for each check; a wrong idea is recognised, key by key, by what it makes of all
of them.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.by_cases import Cases, judge_cases
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_14.speed_cases import COUNT, KEYS, make, right
from course_lib.classroom.checks.lesson_14.speed_ideas import IDEAS, SAYS

CASES = Cases(KEYS, COUNT, make, right, IDEAS)


def judge_speed(answer: Answer, judge: Judge) -> None:
    judge_cases(answer, judge, CASES, __name__)


STREAMED_SPEED = Exercise(judge=judge_speed, **SAYS.about)
