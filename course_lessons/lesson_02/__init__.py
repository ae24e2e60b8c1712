"""The exercises of lesson 02 in the order in which the lesson lists them, a file for each."""

from course_lessons.lesson_02.gradients import GRADIENTS
from course_lessons.lesson_02.initial import SHARDED_INIT
from course_lessons.lesson_02.mystery import MYSTERY_CUT
from course_lessons.lesson_02.row_step import ROW_STEP
from course_lessons.lesson_02.seven import SEVEN_BY_FIVE

EXERCISES = (SEVEN_BY_FIVE, GRADIENTS, ROW_STEP, MYSTERY_CUT, SHARDED_INIT)
