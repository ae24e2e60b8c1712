"""Lesson 08's question about groups: misreadings are named, and no answer is given away."""

from __future__ import annotations

import pytest

from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_08 import groups
from tests.answers.lesson_08_numbers import MISREAD


def played(dp: int = 3, tp: int = 4, rank: int = 7) -> dict[str, float]:
    """The answers, counted on a mesh that is written out rank by rank."""
    mesh = [[d * tp + t for t in range(tp)] for d in range(dp)]
    row = next(row for row in mesh if rank in row)
    column = next(list(column) for column in zip(*mesh, strict=True) if rank in column)
    everyone = [(d, t) for d in range(dp) for t in range(tp)]
    return {
        "a": min(row),
        "b": min(column),
        "c": len({d for d, _ in everyone}),  # who sees which rows
        "d": len(row),
        "e": len(column),
        "f": len(column),
        "g": len(everyone),
        "h": len({t for _, t in everyone}),  # different shards
        "i": 1,
        "j": len({d for d, _ in everyone}),
        "k": len(set(everyone)),
    }


RIGHT = played()


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def test_the_right_numbers_are_right(desk):
    verdict = desk.check("which_group", {}, {"which_group": RIGHT})
    assert verdict.outcome == "right", str(verdict)
    assert verdict.points == 3
    assert not desk.judge.running


def test_every_idea_is_tried_and_none_is_the_right_number():
    tried = [values for values, _ in MISREAD.values()]
    for mistake in groups.MISTAKES:
        for field, value in mistake.values.items():
            assert value != RIGHT[field], (mistake.name, field)
            assert any(one.get(field) == value for one in tried), (mistake.name, field, value)
