"""The exercises of lesson 09 in the lesson's order.

They are a question about bytes, then four functions on the judge's ranks: element owners, a step
with a master copy, groups of pieces, and a test of optimizers with unreadable source.
"""

from __future__ import annotations

from course_lessons.lesson_09.is_sharded import PROOF
from course_lessons.lesson_09.master_step import MASTER
from course_lessons.lesson_09.pieces_of import PIECES
from course_lessons.lesson_09.shard_groups import DECAY
from course_lessons.lesson_09.sixteen_bytes import SIXTEEN

EXERCISES = (SIXTEEN, PIECES, MASTER, DECAY, PROOF)
