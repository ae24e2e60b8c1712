"""The exercises of lesson 09 in the order in which the lesson lists them.

A question with numbers about bytes, then four functions on the judge's ranks: who holds what, a
step with a master copy, groups of pieces, and a test of optimizers whose source cannot be read.
"""

from __future__ import annotations

from course_lessons.lesson_09.decay import DECAY
from course_lessons.lesson_09.master import MASTER
from course_lessons.lesson_09.pieces import PIECES
from course_lessons.lesson_09.proof import PROOF
from course_lessons.lesson_09.sixteen import SIXTEEN

EXERCISES = (SIXTEEN, PIECES, MASTER, DECAY, PROOF)
