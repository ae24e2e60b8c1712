"""Every answer in answers/: the right are right, the wrong are refused by their names.

The answers run on the judge's real ranks. A normal run takes the first two right and the first four
wrong ones of an exercise; that an idea is recognised because it is declared, and not by luck, is
`slow`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from course_classroom.judge import by_cases, looking, thought
from course_classroom.judge.words import Words, name_of
from tests.course_lessons.answers import checked, lessons
from tests.support.likeliest import likeliest_of

MOST = 2  # right answers of an exercise in a normal run; its solution is tried elsewhere
RIGHT = [
    pytest.param(
        exercise, given, id=f"{exercise}-{how}", marks=[] if number < MOST else [pytest.mark.slow]
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


NUMBERS = [row for row in WRONG if isinstance(row[2], dict)]  # tried in no time
FUNCTIONS = [row for row in WRONG if not isinstance(row[2], dict)]


@pytest.mark.parametrize(
    ("exercise", "given", "name"),
    [pytest.param(e, g, n, id=f"{e}-{how}") for e, how, g, n in NUMBERS]
    + likeliest_of(FUNCTIONS, (0, 2, 3)),
)
def test_a_wrong_answer_is_refused_by_its_name(desk, exercise, given, name):
    verdict = checked(desk, exercise, given)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)
    assert verdict.text


def test_no_wrong_answer_stands_twice():
    counts = Counter(str(given) for _, _, given, _ in WRONG)
    assert [text for text, count in counts.items() if count > 1] == []


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "given", "name"), [(e, g, n) for e, _, g, n in WRONG])
def test_an_idea_that_is_left_out_costs_its_answer_the_name(
    desk, monkeypatch, exercise, given, name
):
    """A mutant for every idea that is declared, and for every look in a table of looks."""
    told: list[tuple[Words, str]] = []

    def of(says, entry, before=Words.of, **about):
        told.append((says, entry))
        return before(says, entry, **about)

    monkeypatch.setattr(Words, "of", of)
    ideas = left_out_of_ideas(monkeypatch, name)
    looks = left_out_of_looks(monkeypatch, name)
    verdict = checked(desk, exercise, given)
    assert looks or verdict.outcome == "wrong", str(verdict)
    if not ideas and not looks:
        pytest.skip("neither a declared idea nor in a table: a look of its own names it")
    # Other words, which may say less, may go by the same name.
    by_idea = any(text in verdict.text for text in ideas)
    assert verdict.name != name or (not by_idea and told[-1:] != looks[-1:])


def left_out_of_ideas(monkeypatch, name: str) -> list[str]:
    """Ideas of that name explain nothing from now on; the words of those that would have."""
    met: list[str] = []
    for module in (looking, thought, by_cases):

        def explains(idea, *seen, before=module.explains):
            found = before(idea, *seen)
            met.extend([idea.text] if found and idea.name == name else [])
            return found and idea.name != name

        monkeypatch.setattr(module, "explains", explains)
    return met


def left_out_of_looks(monkeypatch, name: str) -> list[tuple[Words, str]]:
    """Entries of that name are in no table from now on; it fills with those that would hold."""
    met: list[tuple[Words, str]] = []

    def parted(table: dict) -> tuple[dict, dict]:
        mine = {entry: look for entry, look in table.items() if name_of(entry) == name}
        return mine, {entry: look for entry, look in table.items() if entry not in mine}

    def refuse(says, holds, before=Words.refuse, **about):
        mine, others = parted(holds)
        met.extend((says, entry) for entry, condition in mine.items() if condition)
        before(says, others, **about)

    def refuse_each(says, reports, looks, before=Words.refuse_each, **about):
        mine, others = parted(looks)
        reports = list(reports)
        met.extend((says, entry) for entry, look in mine.items() if any(map(look, reports)))
        before(says, reports, others, **about)

    monkeypatch.setattr(Words, "refuse", refuse)
    monkeypatch.setattr(Words, "refuse_each", refuse_each)
    return met
