"""The exercises of lesson 11, in its order: hooks and their frees, the size of a unit, ranks that
want other layers, a table that is a head too."""

from course_lessons.lesson_11.promise import PROMISE
from course_lessons.lesson_11.same_way import SAME_WAY
from course_lessons.lesson_11.tied import TIED_HEAD
from course_lessons.lesson_11.unit import CHOOSE_UNIT

EXERCISES = (PROMISE, CHOOSE_UNIT, SAME_WAY, TIED_HEAD)
