"""Lesson 10's question about fp16: misreadings are named, and no answer is given away."""

from __future__ import annotations

import pytest

from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_10 import divide
from tests.answers.lesson_10_numbers import MISREAD
from tests.answers.lesson_10_numbers import NUMBERS as RIGHT

NAME = "where_to_divide"


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def test_each_question_is_answered_in_its_own_words(desk):
    """What is said about one of the nine does not speak of another."""
    values = {"a": 64, "f": 2048, "g": 2**17}
    lines = desk.check(NAME, {}, {NAME: {**RIGHT, **values}}).text.splitlines()
    assert [line[:4] for line in lines] == ["'a':", "'f':", "'g':"]
    assert "number of ranks" in lines[0]
    assert "scale" in lines[1] and "all 64" in lines[1].lower()
    assert "scale" in lines[2] and "the largest gradient itself" in lines[2]
    shared = [m for m in divide.MISTAKES if len(m.values) > 1]
    both = {("c", "e"), ("a", "c", "f", "g")}  # what becomes of small parts; an exponent
    assert {tuple(m.values) for m in shared} == both


def test_every_idea_is_tried_and_none_is_the_right_number():
    tried = [values for _, values, _ in MISREAD]
    for mistake in divide.MISTAKES:
        for field, value in mistake.values.items():
            assert value != RIGHT[field], (mistake.name, field)
            assert any(one.get(field) == value for one in tried), (mistake.name, field, value)
