"""The exercises of lesson 11 in the order in which the lesson lists them.

Three functions, each tried on the judge's ranks, and a question answered with numbers: hooks and
their frees, the size of a unit, ranks that want other layers, a table that is a head too.
"""

from __future__ import annotations

from course_lib.classroom.checks.lesson_11.promise import PROMISE
from course_lib.classroom.checks.lesson_11.same_way import SAME_WAY
from course_lib.classroom.checks.lesson_11.tied import TIED_HEAD
from course_lib.classroom.checks.lesson_11.unit import CHOOSE_UNIT

EXERCISES = (PROMISE, CHOOSE_UNIT, SAME_WAY, TIED_HEAD)
