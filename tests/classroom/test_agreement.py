"""Sentences about one rank or several agree in number."""

from __future__ import annotations

import pytest

from course_lib.classroom import agreement


def test_ranks_and_things_are_listed():
    assert agreement.ranks([2]) == "rank 2" and agreement.ranks({0, 2}) == "ranks 0 and 2"
    assert agreement.ranks(range(3)) == "ranks 0, 1 and 2"
    assert agreement.counted(1, "forward") == "1 forward"
    assert agreement.counted(0, "forward") == "0 forwards"


@pytest.mark.parametrize(
    ("numbers", "text", "said"),
    [
        ([0], "has ended", "rank 0 has ended"),
        ([1, 2], "has ended", "ranks 1 and 2 have ended"),
        ([0, 1], "was still busy", "ranks 0 and 1 were still busy"),
        ([0, 1], "finished the cell", "ranks 0 and 1 finished the cell"),
        ([0, 1], "holds", "ranks 0 and 1 hold"),
    ],
)
def test_a_verb_agrees_with_its_ranks(numbers, text, said):
    assert agreement.said_of(numbers, text) == said
