"""The exercises of lesson 07 in the lesson's order.

Five are functions that run on the judge's ranks; the last exercise is a question about numbers.
"""

from __future__ import annotations

from course_lessons.lesson_07.log_two import LOG_TWO
from course_lessons.lesson_07.losses import (
    CUT_LOSS,
    IGNORED_LOSS,
    PADDED_LOSS,
    SMOOTHED_LOSS,
    TWO_COLLECTIVES,
)

EXERCISES = (CUT_LOSS, IGNORED_LOSS, PADDED_LOSS, SMOOTHED_LOSS, TWO_COLLECTIVES, LOG_TWO)
