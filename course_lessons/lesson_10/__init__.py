"""The exercises of lesson 10, in its order: buckets that leave early, parameters that not every
rank uses, an overflow that one rank sees; and numbers in fp16."""

from course_lessons.lesson_10.all_of_them import ALL_OF_THEM
from course_lessons.lesson_10.divide import DIVIDE
from course_lessons.lesson_10.early import EARLY
from course_lessons.lesson_10.overflow import OVERFLOW

EXERCISES = (EARLY, ALL_OF_THEM, OVERFLOW, DIVIDE)
