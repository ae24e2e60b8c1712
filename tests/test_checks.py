"""Every answer of tests/answers: the right are right, the wrong are refused by their names.

The answers run on the judge's real ranks. A normal run takes the first two right and the first four
wrong ones of an exercise; that an idea is recognised because it is declared, and not by luck, is
`slow`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from course_lib.classroom.checks import by_cases, frame, looking, thought
from tests.answers import checked, lessons
from tests.likeliest import likeliest_of

MOST = 2  # right answers of an exercise in a normal run; its solution is tried elsewhere
RIGHT = [
    pytest.param(
        exercise,
        given,
        id=f"{exercise}-{how}",
        marks=[] if number < MOST else [pytest.mark.slow],
    )
    for lesson in lessons()
    for exercise, answers in lesson.RIGHT.items()
    for number, (how, given) in enumerate(answers.items())
]
WRONG = [
    (exercise, how, given, name)
    for lesson in lessons()
    for exercise, answers in lesson.WRONG.items()
    for how, (given, name) in answers.items()
]


@pytest.mark.parametrize(("exercise", "given"), RIGHT)
def test_a_right_answer_is_right(desk, exercise, given):
    verdict = checked(desk, exercise, given)
    assert (verdict.outcome, verdict.name) == ("right", ""), str(verdict)
    assert verdict.points == verdict.of


@pytest.mark.parametrize(("exercise", "given", "name"), likeliest_of(WRONG, (0, 2, 3)))
def test_a_wrong_answer_is_refused_by_its_name(desk, exercise, given, name):
    verdict = checked(desk, exercise, given)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)
    assert verdict.text


def test_each_answer_is_one_of_an_exercise_that_there_is():
    known = set(frame.exercises())
    named = {one.values[0] for one in RIGHT} | {one[0] for one in WRONG}
    assert named <= known


def test_no_wrong_answer_stands_twice():
    counts = Counter(str(given) for _, _, given, _ in WRONG)
    assert [text for text, count in counts.items() if count > 1] == []


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "given", "name"), [(e, g, n) for e, _, g, n in WRONG])
def test_an_idea_that_is_left_out_costs_its_answer_the_name(
    desk, monkeypatch, exercise, given, name
):
    """A mutant for every idea that is declared: without it, something else is said."""
    met = []
    for module in (looking, thought, by_cases):

        def explains(idea, *seen, before=module.explains):
            found = before(idea, *seen)
            met.extend([idea] if found and idea.name == name else [])
            return found and idea.name != name

        monkeypatch.setattr(module, "explains", explains)
    verdict = checked(desk, exercise, given)
    assert verdict.outcome == "wrong", str(verdict)
    if not met:
        pytest.skip("no declared idea: a look of its own names it")
    assert verdict.name != name
