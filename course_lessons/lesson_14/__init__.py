"""The exercises of lesson 14 in the lesson's order, with a file for each."""

from __future__ import annotations

from course_lessons.lesson_14.atomic_save import ATOMIC_SAVE
from course_lessons.lesson_14.from_old_ranks import FROM_OLD_RANKS
from course_lessons.lesson_14.generate_together import GENERATE_TOGETHER
from course_lessons.lesson_14.streamed_speed import STREAMED_SPEED
from course_lessons.lesson_14.take_stock import TAKE_STOCK

EXERCISES = (FROM_OLD_RANKS, TAKE_STOCK, ATOMIC_SAVE, STREAMED_SPEED, GENERATE_TOGETHER)
