"""The exercises of lesson 12, in the lesson's order: numbers from an estimator and from two
bandwidths, and two functions whose choices are run and measured on the judge's ranks."""

from course_lessons.lesson_12.eighteen import EIGHTEEN
from course_lessons.lesson_12.hides import HIDES
from course_lessons.lesson_12.pick_stage import PICK
from course_lessons.lesson_12.walk_ladder import LADDER

EXERCISES = (EIGHTEEN, HIDES, PICK, LADDER)
