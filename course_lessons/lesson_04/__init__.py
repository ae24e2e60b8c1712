"""The exercises of lesson 04 in the order in which the lesson lists them, a file for each."""

from __future__ import annotations

from course_lessons.lesson_04.five import FIVE_TO_TWO
from course_lessons.lesson_04.fuse import FUSE_GATE_UP
from course_lessons.lesson_04.gelu import GELU
from course_lessons.lesson_04.pays import TP_PAYS

EXERCISES = (GELU, FUSE_GATE_UP, FIVE_TO_TWO, TP_PAYS)
