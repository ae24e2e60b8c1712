"""The exercises of lesson 01 in the lesson's order, with a file for each."""

from course_lessons.lesson_01.all_gather_uneven import ALL_GATHER_UNEVEN
from course_lessons.lesson_01.ring_all_reduce import RING
from course_lessons.lesson_01.ring_bytes import RING_BYTES
from course_lessons.lesson_01.tree_or_ring import TREE_OR_RING
from course_lessons.lesson_01.who_hangs import WHO_HANGS

EXERCISES = (RING_BYTES, RING, WHO_HANGS, TREE_OR_RING, ALL_GATHER_UNEVEN)
