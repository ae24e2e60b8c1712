"""The checks of lesson 00: a verdict says what it should."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.answers import lesson_00

RIGHT = lesson_00.WHO


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Iterator[Desk]:
    patch = pytest.MonkeyPatch()
    patch.setenv("COURSE_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    made = Desk()
    yield made
    made.judge.stop()
    patch.undo()


def test_several_ideas_are_told_one_by_one(desk):
    text = desk.check("who_knows", {}, {"who_knows": {**RIGHT, "c": 3, "e": 1}}).text
    assert "'c': A cell without `%%ranks`" in text
    assert "'e': `%%ranks 1-2` names both ends" in text


def test_a_group_of_two_is_not_called_two_ranks(desk):
    text = desk.check(
        "mean_over_ranks",
        {"mean_over_ranks": lesson_00.WRONG["mean_over_ranks"]["the notebook's world"][0]},
    ).text
    assert "It fails on a group of 2 out of 3 ranks. It reads `world`, of all ranks" in text
    assert "it is the wrong number." in text


def test_no_hint_and_no_verdict_gives_the_answer_away():
    for exercise in frame.lessons()["00"]:
        said = " ".join([*exercise.hints, exercise.when_right])
        assert "/ group.size()" not in said
        assert not any(f"{number}" in said for number in "01235")
