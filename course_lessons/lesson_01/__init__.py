"""The exercises of lesson 01 in the order in which the lesson lists them, a file for each."""

from course_lessons.lesson_01.bytes_sent import RING_BYTES
from course_lessons.lesson_01.hangs import WHO_HANGS
from course_lessons.lesson_01.ring import RING
from course_lessons.lesson_01.trees import TREE_OR_RING
from course_lessons.lesson_01.uneven import ALL_GATHER_UNEVEN

EXERCISES = (RING_BYTES, RING, WHO_HANGS, TREE_OR_RING, ALL_GATHER_UNEVEN)
