"""The exercises of lesson 02 in the lesson's order, with a file for each."""

from course_lessons.lesson_02.cut_gradients import GRADIENTS
from course_lessons.lesson_02.mystery_cut import MYSTERY_CUT
from course_lessons.lesson_02.row_step import ROW_STEP
from course_lessons.lesson_02.seven_by_five import SEVEN_BY_FIVE
from course_lessons.lesson_02.sharded_init import SHARDED_INIT

EXERCISES = (SEVEN_BY_FIVE, GRADIENTS, ROW_STEP, MYSTERY_CUT, SHARDED_INIT)
