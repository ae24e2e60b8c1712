"""Calls that an answer left out are told by name: a wait, or a collective of an empty rank."""

from __future__ import annotations

import pytest

from course_classroom.judge import left_out
from course_classroom.judge.finding import Finding
from course_classroom.ranks.hangs import Fact
from tests.course_lessons.answers import checked

SUM = """
def mean_over_ranks(x, group):
    y = x.clone()
    work = dist.all_reduce(y, group=group, async_op=True)
    {wait}
    return y / group.size()
"""


@pytest.mark.parametrize(
    "wait",
    ["work.wait()", "work.get_future().wait()", "[None for _ in iter(work.is_completed, True)]"],
)
def test_every_way_to_wait_is_one(desk, wait):
    verdict = checked(desk, "mean_over_ranks", SUM.format(wait=wait))
    assert verdict.outcome == "right", str(verdict)


WAITED = [
    Fact(0, "waited", "waited in all_gather"),
    Fact(1, "ok", "finished"),
    Fact(2, "waited", ""),
]
DISAGREE = (
    "stopped: the ranks disagree about a collective: ranks 0, 2 call a of x; rank 1 calls b of x"
)


def test_an_empty_rank_that_left_a_collective_out_is_told():
    with pytest.raises(Finding) as raised:
        left_out.refuse_by_empty(WAITED, [1], "on 3 ranks")
    assert raised.value.name == "left out by an empty rank"
    assert "rank 1 holds nothing" in raised.value.text
    with pytest.raises(Finding, match="Every rank of a group"):
        left_out.refuse_by_empty([Fact(r, "raised", DISAGREE) for r in range(3)], [1], "here")


@pytest.mark.parametrize("empty", [[], [0], [2]])
def test_a_rank_that_holds_something_is_not_called_empty(empty):
    left_out.refuse_by_empty(WAITED, empty, "on 3 ranks")
    left_out.refuse_by_empty([Fact(r, "raised", DISAGREE) for r in range(3)], empty, "on 3 ranks")
