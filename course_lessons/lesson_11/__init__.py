"""The exercises of lesson 11, in the lesson's order: hooks that gather and free, the size of a
unit, ranks that need different layers, and a table that is also the head."""

from course_lessons.lesson_11.choose_unit import CHOOSE_UNIT
from course_lessons.lesson_11.promise import PROMISE
from course_lessons.lesson_11.same_way import SAME_WAY
from course_lessons.lesson_11.tied_head import TIED_HEAD

EXERCISES = (PROMISE, CHOOSE_UNIT, SAME_WAY, TIED_HEAD)
