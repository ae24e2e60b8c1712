"""The exercises of lesson 14 in the order in which the lesson lists them.

Each is a function, tried on the judge's ranks.
"""

from __future__ import annotations

from course_lessons.lesson_14.atomic import ATOMIC_SAVE
from course_lessons.lesson_14.go_on import FROM_OLD_RANKS
from course_lessons.lesson_14.speed import STREAMED_SPEED
from course_lessons.lesson_14.stock import TAKE_STOCK
from course_lessons.lesson_14.together import GENERATE_TOGETHER

EXERCISES = (FROM_OLD_RANKS, TAKE_STOCK, ATOMIC_SAVE, STREAMED_SPEED, GENERATE_TOGETHER)
