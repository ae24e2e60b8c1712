"""What an exercise gets from the frame by being declared: one of no lesson, with its answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_classroom.judge import frame
from course_classroom.judge.judge import Judge
from tests.course_lessons import sample_exercise as sample

MOST = 150  # lines that a new exercise of a function may cost, with its answers


@pytest.fixture(scope="module")
def judge():
    judge = Judge(idle_minutes=0)
    yield judge
    judge.stop()


def judged(judge: Judge, source: str) -> frame.Verdict:
    defined = dict.fromkeys(("two_columns", "Enter", "copy"), source)
    return frame.judge(sample.TWO_COLUMNS, defined, {}, judge)


@pytest.mark.parametrize("how", sample.RIGHT)
def test_a_right_answer_is_right(judge, how):
    verdict = judged(judge, sample.RIGHT[how])
    assert verdict.outcome == "right", str(verdict)


@pytest.mark.parametrize("how", sample.WRONG)
def test_a_wrong_answer_is_refused_by_its_name(judge, how):
    source, old, new, name = sample.WRONG[how]
    assert old in source
    changed = source.replace(old, new) + (sample.GATHER if new == "    y = " else "")
    verdict = judged(judge, changed)
    assert (verdict.outcome, verdict.name) == ("wrong", name), str(verdict)


def test_an_exercise_costs_its_author_no_more_lines():
    files = (Path(sample.__file__), sample.SAYS.path)
    assert sum(len(file.read_text().splitlines()) for file in files) <= MOST
