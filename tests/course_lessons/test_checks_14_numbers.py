"""What `streamed_speed` draws and counts."""

from __future__ import annotations

import math

import pytest

from course_classroom.judge import by_cases
from course_classroom.judge.finding import Finding
from course_lessons.lesson_14 import streamed_speed as speed
from course_lessons.lesson_14.streamed_speed import KEYS, right
from tests.course_lessons.answers.lesson_14 import SPEED
from tests.course_lessons.test_checks_every import written

SEEDS = range(12)
drawn = speed.CASES.drawn  # where no idea is right, and no two are alike


@pytest.mark.parametrize("source", [SPEED, written("solutions", "streamed_speed")])
def test_two_other_functions_count_the_same(source):
    space: dict = {}
    exec(source, space)
    for seed in SEEDS:
        for case in drawn(seed):
            seen = space["streamed_speed"](case)
            assert all(map(by_cases.same, seen.values(), right(case).values())), case


def test_each_check_draws_other_cases_of_every_kind():
    assert drawn(1) != drawn(2) and drawn(1) == drawn(1)
    assert drawn(1)[-1]["memory"] < drawn(1)[-1]["link"]  # and one that waits for its own memory
    for seed in SEEDS:
        kinds = set()
        for case in drawn(seed)[:-1]:
            c = speed.Counts(case)
            kinds.add(max((c.transfer, "link"), (c.works, "work"))[1] + str(c.works < c.reads))
        assert kinds == {"linkTrue", "linkFalse", "workFalse"}


@pytest.mark.parametrize("key", KEYS)
def test_a_refusal_does_not_say_what_is_right(key):
    cases = drawn(7)
    wanted = [right(case)[key] for case in cases]
    values = [{**right(case), key: -7.0} for case in cases]
    seen = {"error": "", "kind": "dict", "lost": [], "changed": False}
    with pytest.raises(Finding) as refused:
        by_cases.look(speed.CASES, cases, [{**seen, "values": value} for value in values])
    for value in wanted:
        assert f"{value:.4g}" not in str(refused.value).split("Your value is")[0]
    assert not math.isclose(wanted[0], -7)
