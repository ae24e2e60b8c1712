"""The exercises of lesson 04 in the lesson's order, with a file for each."""

from __future__ import annotations

from course_lessons.lesson_04.five_to_two import FIVE_TO_TWO
from course_lessons.lesson_04.fuse_gate_up import FUSE_GATE_UP
from course_lessons.lesson_04.gelu_counterexample import GELU
from course_lessons.lesson_04.tp_pays import TP_PAYS

EXERCISES = (GELU, FUSE_GATE_UP, FIVE_TO_TWO, TP_PAYS)
