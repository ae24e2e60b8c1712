"""Lesson 04's questions with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_04 import pays
from tests.answers.lesson_04_numbers import NUMBERS as ANSWERS


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def answered(desk: Desk, name: str, given: object) -> frame.Verdict:
    return desk.check(name, {}, {name: given})


@pytest.mark.parametrize("name", ANSWERS)
def test_numbers_by_hand_are_right(desk, name):
    assert answered(desk, name, ANSWERS[name]).outcome == "right"


@pytest.mark.parametrize(
    ("entry", "counts"), [(entry, counts) for entry, ways in pays.IDEAS.items() for counts in ways]
)
def test_every_idea_about_time_goes_by_its_own_name(desk, entry, counts):
    name, text = pays.SAYS.of(entry)
    verdict = answered(desk, "tp_pays", replace(pays.RIGHT, **counts).answers())
    assert (verdict.outcome, verdict.name) == ("wrong", name)
    assert text in verdict.text
