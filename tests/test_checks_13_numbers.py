"""Lesson 13's question with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.answers.lesson_13_numbers import NUMBERS as RIGHT

NAME = "read_config"


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def answered(desk: Desk, given: object) -> frame.Verdict:
    return desk.check(NAME, {}, {NAME: given})


def test_each_of_several_misreadings_is_named(desk):
    verdict = answered(desk, {**RIGHT, "batch": 32, "stage, misspelt": 2})
    assert verdict.name == "several ideas" and "'batch'" in verdict.text
