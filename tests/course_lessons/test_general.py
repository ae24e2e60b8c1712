"""Mistakes that any exercise may meet are recognised by their values, and nothing else is."""

from __future__ import annotations

import pytest
import torch

from course_classroom.judge import looking
from course_classroom.judge.finding import Finding
from course_classroom.judge.general import narrower
from tests.course_lessons.answers import checked

RIGHT = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_values_that_went_through_a_narrower_type(kind):
    name = str(kind).removeprefix("torch.")
    assert narrower(RIGHT.to(kind).double(), RIGHT) == [name]
    infinite = torch.cat((RIGHT, torch.full((1, 3), -torch.inf, dtype=torch.float64)))
    assert narrower(infinite.to(kind).double(), infinite) == [name]
    with looking.rounded() as misses:
        assert not looking.near(RIGHT.to(kind).double(), RIGHT)
    assert (misses.kinds, misses.off) == ([name], False)


@pytest.mark.parametrize(
    "seen",
    [RIGHT * 1.001, RIGHT + 0.001, RIGHT.roll(1), RIGHT * torch.nan, torch.zeros_like(RIGHT)],
)
def test_other_wrong_values_were_not_rounded(seen):
    assert narrower(seen, RIGHT) == []


def test_rounding_is_not_all_where_another_value_is_off():
    near_one, other = RIGHT.float().double(), RIGHT * 1.001
    for seen in ([near_one, other], [other, near_one]):
        with looking.rounded() as misses:
            assert not looking.all_near(seen, [RIGHT, RIGHT])
        assert (misses.kinds, misses.off) == (["float32"], True)


def test_a_wrong_idea_that_was_rounded_is_the_idea():
    ideas = [looking.Idea("shifted", "…", [RIGHT + 1]), looking.Idea("twice", "…", [RIGHT * 2])]
    seen = [(RIGHT * 2).float().double()]
    assert looking.recognise(seen, ideas) is None, "nothing is known of what is wanted"
    with looking.rounded() as misses:
        assert not looking.all_near(seen, [RIGHT])
        assert looking.recognise(seen, ideas).name == "twice"
    assert not misses.kinds, "what an idea gives is not what is wanted"
    with looking.rounded():  # what is wanted but for rounding is no idea that lies as near
        assert not looking.all_near(seen, [RIGHT * 2])
        assert looking.recognise(seen, ideas) is None


def test_a_small_number_in_a_denominator_is_no_rounding():
    sums = RIGHT.abs() + 1
    assert narrower(1 / (sums + 1e-7), 1 / sums) == []
    third = float(torch.tensor(1 / 3, dtype=torch.float32))  # one factor that was rounded
    assert narrower(RIGHT * third, RIGHT / 3) == ["float32"]


def test_a_count_that_is_off_by_one_in_a_million_was_not_rounded():
    million = torch.tensor([1e6], dtype=torch.float64)
    assert narrower(million + 1, million) == []


def refused(seen, right, **sizes) -> str:
    with pytest.raises(Finding) as raised:
        looking.refuse_general(seen, right, "here", sizes=sizes)
    return raised.value.name


def test_a_mean_for_a_sum_is_told_by_what_it_was_taken_over():
    three = [RIGHT] * 3
    assert refused([RIGHT / 3] * 3, three, rows=5) == "a mean over the ranks"
    assert refused([RIGHT / 5] * 3, three, rows=5) == "a mean over the rows"
    assert refused([RIGHT * 5] * 3, three, rows=5) == "a sum over the rows"
    looking.refuse_general([RIGHT / 3] * 3, three, "here", sizes={"rows": 3})  # which of the two?


def test_a_result_on_one_rank_only_is_told():
    assert refused([RIGHT, RIGHT * 2, RIGHT + 1], [RIGHT] * 3) == "on one rank only"
    parts = [RIGHT, RIGHT + 1, RIGHT + 2]  # each rank's own: nothing to reduce to one of them
    looking.refuse_general([RIGHT, RIGHT, RIGHT], parts, "here")


def test_the_frame_says_rounded_whatever_the_look_said(desk):
    source = "def clip_as_one(params, groups, limit):\n    return 0.0\n"
    assert checked(desk, "clip_as_one", source).name != "rounded on the way"


@pytest.mark.parametrize(
    "seen",
    [
        RIGHT.float(),
        RIGHT.to_sparse(),
        RIGHT.to(torch.complex128),
        torch.empty_like(RIGHT, device="meta"),
        RIGHT.long(),
        None,
    ],
)
def test_what_cannot_be_compared_is_not_near_and_no_error(seen):
    assert not looking.near(seen, RIGHT)
