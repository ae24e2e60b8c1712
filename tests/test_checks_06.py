"""A disagreement in the backward of lesson 06's loss, on real ranks.

`tests/answers` has answers that are right or wrong.
"""

from __future__ import annotations

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.answers.lesson_06_loss import loss

# f of pieces of the table that differ in length: its backward's all-reduces disagree.
TORN = loss(("copy(table, group)", "copy(table[: len(table) - group.rank()], group)"))


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, {name: source})


def test_a_disagreement_in_the_backward_is_placed_there_once(desk):
    text = judged(desk, "uneven_loss", TORN).text
    assert "disagree" in text and text.count("in the backward") == 1, text
    assert "line 1" not in text
