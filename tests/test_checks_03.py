"""Lesson 03's two functions: what is handed out and what breaks; answers stand in `tests/answers`.

Every answer here runs on the judge's real ranks.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.answers import changed
from tests.answers.lesson_03 import PAIR

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS, EXERCISES = ROOT / "solutions" / "03_f_and_g", ROOT / "exercises" / "03_f_and_g"


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, {name: source})


def cell(folder: Path, name: str) -> str:
    cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-answer").split("\n", 1)[1]


@pytest.mark.parametrize("name", ["conjugates", "gather_from"])
def test_the_reference_answer_is_right_and_what_is_handed_out_is_blank(desk, name):
    verdict = judged(desk, name, cell(SOLUTIONS, name))
    assert (verdict.outcome, verdict.points, verdict.name) == ("right", 4, ""), str(verdict)
    assert judged(desk, name, cell(EXERCISES, name)).outcome == "not attempted"


def test_a_pair_that_breaks_costs_one_check(desk):
    some = "        if group.rank():\n            dist.all_reduce(y, group=group)\n"
    hangs = changed(PAIR, ("        dist.all_reduce(y, group=group)\n", some))
    assert judged(desk, "conjugates", hangs).name in ("deadlock", "no end", "raised")
    raises = "def conjugates(group):\n    return 1 / 0\n"
    assert judged(desk, "conjugates", raises).name == "raised"
    assert judged(desk, "conjugates", PAIR).outcome == "right"


def test_no_hint_gives_an_answer_away():
    for name in ("conjugates", "gather_from"):
        said = " ".join(frame.find(name).hints) + frame.find(name).when_right
        for piece in (
            "clone(",
            "all_reduce(t",
            "reduce_scatter(dy",
            "group.rank()]",
            ".apply(x, g",
        ):
            assert piece not in said
