"""The doctor's line about grading: which walls stand, and what to do where one is missing."""

from __future__ import annotations

import pytest

from course_lib.classroom.doctor.answers import answers
from course_lib.classroom.grading.walls import Walls


@pytest.mark.parametrize(
    ("standing", "level", "word"),
    [
        (Walls(7, True, True), "ok", "Landlock (release 7)"),
        (Walls(7, True, False), "note", "they share the network"),
        (Walls(), "note", "not confined"),
    ],
)
def test_what_could_be_kept_from_answers_is_told(standing, level, word):
    (found,) = answers(standing)
    assert (found.name, found.level) == ("grading", level) and word in found.found
    assert bool(found.remedy) == (level == "note")


def test_this_machine_is_asked():
    (found,) = answers()
    assert "Landlock" in found.found
