"""What `streamed_speed` draws and counts, and that no wrong idea of it can be taken for another."""

from __future__ import annotations

import math

import pytest

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_14 import speed, speed_cases
from course_lib.classroom.checks.lesson_14.speed_cases import KEYS, drawn, right
from course_lib.classroom.checks.lesson_14.speed_ideas import IDEAS
from tests.plausible_14 import SPEED
from tests.test_checks_14 import reference

SEEDS = range(12)


@pytest.mark.parametrize("source", [SPEED, reference("streamed_speed")], ids=["ours", "solution"])
def test_two_other_functions_count_the_same(source):
    space: dict = {}
    exec(source, space)
    for seed in SEEDS:
        for case in drawn(seed):
            seen = space["streamed_speed"](case)
            assert all(map(speed.same, seen.values(), right(case).values())), case


def test_no_idea_is_right_and_no_two_are_alike_on_what_is_drawn():
    for seed in SEEDS:
        cases = drawn(seed)
        truths, seen = [right(case) for case in cases], []
        for idea in IDEAS:
            gives = [idea.gives(case) for case in cases]
            assert not all(map(speed.same, gives, [truth[idea.key] for truth in truths])), idea.name
            for key, other in seen:
                assert key != idea.key or not all(map(speed.same, gives, other)), idea.name
            seen.append((idea.key, gives))


def test_each_check_draws_other_cases_of_every_kind():
    assert drawn(1) != drawn(2) and drawn(1) == drawn(1)
    for seed in SEEDS:
        kinds = set()
        for case in drawn(seed):
            travel, works = speed_cases.transfer(case), speed_cases.operations(case, case["batch"])
            reads = case["item"] * case["parameters"] / case["memory"]
            kinds.add(max((travel, "link"), (works, "work"))[1] + str(works < reads))
        assert kinds == {"linkTrue", "linkFalse", "workFalse"}


def test_break_even_is_where_the_two_times_meet():
    for case in drawn(3):
        even = speed_cases.break_even(case)
        assert speed_cases.operations(case, even) >= speed_cases.transfer(case)
        assert speed_cases.operations(case, even - 1) < speed_cases.transfer(case)


@pytest.mark.parametrize("key", KEYS)
def test_a_refusal_does_not_say_what_is_right(key):
    cases = drawn(7)
    wanted = [right(case)[key] for case in cases]
    with pytest.raises(Finding) as refused:
        speed._refuse(key, [-7.0] * len(cases), list(range(len(cases))), cases)
    for value in wanted:
        assert f"{value:.4g}" not in str(refused.value).split("You have")[0]
    assert not math.isclose(wanted[0], -7)
