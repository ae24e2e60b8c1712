"""The exercises of lesson 11, in its order: hooks and their frees, the size of a unit, ranks that
want other layers, a table that is a head too."""

from course_lessons.lesson_11.choose_unit import CHOOSE_UNIT
from course_lessons.lesson_11.promise import PROMISE
from course_lessons.lesson_11.same_way import SAME_WAY
from course_lessons.lesson_11.tied_head import TIED_HEAD

EXERCISES = (PROMISE, CHOOSE_UNIT, SAME_WAY, TIED_HEAD)
