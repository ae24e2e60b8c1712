"""The exercises of lesson 06 in the order in which the lesson lists them, a file for each."""

from __future__ import annotations

from course_lessons.lesson_06.fits import WHICH_FITS
from course_lessons.lesson_06.half_block import SEQUENCE_MLP
from course_lessons.lesson_06.pay import PAY_SUMS
from course_lessons.lesson_06.uneven import UNEVEN_LOSS

EXERCISES = (SEQUENCE_MLP, PAY_SUMS, UNEVEN_LOSS, WHICH_FITS)
