"""The exercises of lesson 15 in the lesson's order.

Three exercises are functions that are tried on random cases, and one asks for numbers.
"""

from __future__ import annotations

from course_lessons.lesson_15.changes_sides import CHANGES_SIDES
from course_lessons.lesson_15.cheapest_plan import CHEAPEST_PLAN
from course_lessons.lesson_15.mfu_of_log import MFU_OF_LOG
from course_lessons.lesson_15.place_ranks import PLACE_RANKS

EXERCISES = (PLACE_RANKS, CHANGES_SIDES, MFU_OF_LOG, CHEAPEST_PLAN)
