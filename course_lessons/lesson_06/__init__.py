"""The exercises of lesson 06 in the lesson's order, with a file for each."""

from __future__ import annotations

from course_lessons.lesson_06.pay_sums import PAY_SUMS
from course_lessons.lesson_06.sequence_mlp import SEQUENCE_MLP
from course_lessons.lesson_06.uneven_loss import UNEVEN_LOSS
from course_lessons.lesson_06.which_fits import WHICH_FITS

EXERCISES = (SEQUENCE_MLP, PAY_SUMS, UNEVEN_LOSS, WHICH_FITS)
