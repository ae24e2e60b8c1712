"""Lesson 07's loss within a budget of two messages: answers that break.

Right answers and likely wrong ones stand in `tests/answers`.
"""

from __future__ import annotations

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.answers.lesson_07_two import BASE, body

NAME = "two_collectives"


def judged(desk: Desk, source: str) -> frame.Verdict:
    return desk.check(NAME, {NAME: source})


def test_what_breaks_costs_one_check(desk):
    for text, found in (
        ("    return 1 / 0", "raised"),
        ("    ...", ""),
        ("    raise SystemExit", "raised"),
        ("    return [logits]", "wrong shape"),
        ("    return logits.sum(-1) * float('nan')", "not finite"),
        ("    return torch.zeros_like(targets, dtype=torch.float64)", "wrong loss"),
    ):
        verdict = judged(desk, body(text))
        assert verdict.name == found, verdict.text
    assert judged(desk, BASE).outcome == "right"
