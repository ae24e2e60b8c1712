"""Lesson 06's mean over uneven pieces, on real ranks: right answers pass, mistakes are named."""

from __future__ import annotations

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.answers.lesson_06_loss import LOSS, WRONG_LOSS, loss

# f of pieces of the table that differ in length: its backward's all-reduces disagree.
TORN = loss(("copy(table, group)", "copy(table[: len(table) - group.rank()], group)"))


def judged(desk: Desk, source: str) -> frame.Verdict:
    return desk.check("uneven_loss", {"uneven_loss": source})


def test_a_disagreement_in_the_backward_is_placed_there_once(desk):
    text = judged(desk, TORN).text
    assert "disagree" in text and text.count("in the backward") == 1, text
    assert "line 1" not in text


def test_what_breaks_costs_one_check(desk):
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("return 'loss'", "not a loss"),
        ("return torch.tensor(float('nan')).double()", "wrong loss"),
    ):
        verdict = judged(desk, f"def uneven_loss(a, b, c, d, e):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert judged(desk, LOSS).outcome == "right"


def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(desk):
    one = frame.find("uneven_loss")
    said = " ".join([*one.hints, one.when_right])
    said += " ".join(judged(desk, source).text for source, _ in list(WRONG_LOSS.values())[:8])
    for piece in ("copy(table", "reduce(own", "sum(sizes[", "x.shape[0]"):
        assert piece not in said
