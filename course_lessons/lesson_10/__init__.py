"""The exercises of lesson 10, in the lesson's order: buckets that leave early, parameters that only
some ranks use, an overflow on one rank, and numbers in fp16."""

from course_lessons.lesson_10.agreed_step import OVERFLOW
from course_lessons.lesson_10.reduce_early import EARLY
from course_lessons.lesson_10.shard_of_all import ALL_OF_THEM
from course_lessons.lesson_10.where_to_divide import DIVIDE

EXERCISES = (EARLY, ALL_OF_THEM, OVERFLOW, DIVIDE)
