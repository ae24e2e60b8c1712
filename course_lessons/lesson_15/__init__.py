"""The exercises of lesson 15 in the order in which the lesson lists them.

Three are functions of drawn cases, one asks for numbers.
"""

from __future__ import annotations

from course_lessons.lesson_15.cheapest import CHEAPEST_PLAN
from course_lessons.lesson_15.mfu import MFU_OF_LOG
from course_lessons.lesson_15.place import PLACE_RANKS
from course_lessons.lesson_15.sides import CHANGES_SIDES

EXERCISES = (PLACE_RANKS, CHANGES_SIDES, MFU_OF_LOG, CHEAPEST_PLAN)
