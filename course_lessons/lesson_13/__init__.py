"""The exercises of lesson 13, in its order: a question answered with numbers, three functions over
configs, the last of which is run with FSDP2 on the judge's ranks, and one over the log of a run."""

from course_lessons.lesson_13.fill_batch import FILL_BATCH
from course_lessons.lesson_13.in_fsdp2 import IN_FSDP2
from course_lessons.lesson_13.mend_config import MEND_CONFIG
from course_lessons.lesson_13.read_config import READ_CONFIG
from course_lessons.lesson_13.read_log import READ_LOG

EXERCISES = (READ_CONFIG, MEND_CONFIG, FILL_BATCH, IN_FSDP2, READ_LOG)
