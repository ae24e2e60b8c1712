"""Lesson 08's question about groups: misreadings are named, and no answer is given away."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_08 import groups
from tests.answers.lesson_08_numbers import MISREAD

ROOT = Path(__file__).resolve().parent.parent
SOLUTION = ROOT / "solutions" / "08_gpt_that_trains" / "which_group.ipynb"
EXERCISE = ROOT / "exercises" / "08_gpt_that_trains" / "which_group.ipynb"


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


def test_the_reference_is_right_and_a_blank_is_not_attempted(desk):
    cells = nbformat.read(SOLUTION, as_version=4).cells
    source = next(c.source for c in cells if "which_group = {" in c.source)
    found: dict = {}
    exec(source, found)
    assert desk.check("which_group", {}, found).outcome == "right"
    blank = {**RIGHT, "e": ...}
    verdict = desk.check("which_group", {}, {"which_group": blank})
    assert verdict.outcome == "not attempted" and "'e'" in verdict.text


def test_the_exercise_holds_no_number():
    cells = nbformat.read(EXERCISE, as_version=4).cells
    source = next(c.source for c in cells if "which_group = {" in c.source)
    assert source.count("...") == len(RIGHT)
    assert not re.search(r"\"[a-k]\": *\d", source)


def test_neither_a_hint_nor_a_verdict_gives_a_number_away():
    exercise = frame.find("which_group")
    said = " ".join(exercise.hints) + exercise.when_right
    assert not re.search(r"\d", said)
