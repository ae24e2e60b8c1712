"""The exercises of lesson 13, in the lesson's order: a question about numbers, three functions on
configs, the last of which runs with FSDP2 on the judge's ranks, and a function on logs."""

from course_lessons.lesson_13.fill_batch import FILL_BATCH
from course_lessons.lesson_13.in_fsdp2 import IN_FSDP2
from course_lessons.lesson_13.mend_config import MEND_CONFIG
from course_lessons.lesson_13.read_config import READ_CONFIG
from course_lessons.lesson_13.read_log import READ_LOG

EXERCISES = (READ_CONFIG, MEND_CONFIG, FILL_BATCH, IN_FSDP2, READ_LOG)
