"""The exercises of lesson 03 in the lesson's order, with a file for each."""

from course_lessons.lesson_03.conjugates import CONJUGATES
from course_lessons.lesson_03.gather_from import GATHER_FROM
from course_lessons.lesson_03.in_place_gradients import IN_PLACE
from course_lessons.lesson_03.plain_all_reduce import PLAIN
from course_lessons.lesson_03.right_gather import RIGHT_GATHER

EXERCISES = (CONJUGATES, IN_PLACE, RIGHT_GATHER, GATHER_FROM, PLAIN)
