"""Lesson 07's loss within a budget of two messages: the reference, and answers that break.

Right answers and likely wrong ones stand in `tests/answers`.
"""

from __future__ import annotations

from pathlib import Path

import nbformat

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.answers.lesson_07_two import BASE, body

NAME = "two_collectives"
SOLUTION = Path(__file__).resolve().parent.parent / "solutions" / "07_vocabulary" / f"{NAME}.ipynb"


def judged(desk: Desk, source: str) -> frame.Verdict:
    return desk.check(NAME, {NAME: source})


def test_the_reference_answer_is_right(desk):
    cells = nbformat.read(SOLUTION, as_version=4).cells
    source = next(c.source for c in cells if f"def {NAME}" in c.source).split("\n", 1)[1]
    verdict = judged(desk, source)
    assert (verdict.outcome, verdict.points) == ("right", frame.find(NAME).points), str(verdict)


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


def test_neither_a_hint_nor_a_verdict_gives_the_answer_away():
    said = " ".join(frame.find(NAME).hints) + frame.find(NAME).when_right
    for piece in ("amax", ".exp()", "own - most", "clamp", "where(", "save_for_backward"):
        assert piece not in said
