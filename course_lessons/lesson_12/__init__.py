"""The exercises of lesson 12, in its order: an estimator's numbers, two bandwidths', and two
functions whose choices are run on the judge's ranks and measured there."""

from course_lessons.lesson_12.eighteen import EIGHTEEN
from course_lessons.lesson_12.hides import HIDES
from course_lessons.lesson_12.pick_stage import PICK
from course_lessons.lesson_12.walk_ladder import LADDER

EXERCISES = (EIGHTEEN, HIDES, PICK, LADDER)
