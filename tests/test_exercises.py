"""Each exercise notebook says what its check says, each check has its notebook, for all lessons."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame

ROOT = Path(__file__).resolve().parent.parent


def solutions() -> list[Path]:
    return sorted((ROOT / "solutions").glob("*/*.ipynb"))


@pytest.mark.parametrize("path", solutions(), ids=lambda path: path.stem)
def test_a_notebook_is_an_exercise_of_its_lesson_and_says_what_the_frame_says(path):
    lesson = path.parent.name[:2]
    mine: Mapping[str, object] = {one.name: one for one in frame.lessons()[lesson]}
    assert path.stem in mine
    exercise = mine[path.stem]
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].source.startswith(f"# {exercise.title}\n")
    head = cells[0].source.splitlines()[2]
    points, _ = re.fullmatch(
        rf"\*\*(\d+) points? · (\d+) minutes · [a-z ]+\*\* · belongs to lesson {lesson}", head
    ).groups()
    graded = [c for c in cells if c.metadata.get("nbgrader", {}).get("grade")]
    assert [c.metadata.nbgrader.points for c in graded] == [exercise.points] == [int(points)]
    assert [c.source for c in graded] == [f'check("{path.stem}")']
    answer = next(c.source for c in cells if c.metadata.get("nbgrader", {}).get("solution"))
    assert re.search(rf"^(def {path.stem}\(|{path.stem} = \{{)", answer, re.MULTILINE)
    assert any(f'hint("{path.stem}")' in c.source for c in cells)
    assert 2 < len(exercise.hints) < 6


def test_every_exercise_has_a_notebook():
    wanted = {(lesson, one.name) for lesson, found in frame.lessons().items() for one in found}
    assert {(path.parent.name[:2], path.stem) for path in solutions()} == wanted


def test_the_lesson_lists_its_exercises_with_points_and_minutes():
    lesson = nbformat.read(next(ROOT.glob("notebooks/01_*.ipynb")), as_version=4)
    row = re.compile(r"\[(.+?)\]\(\.\./exercises/01_collectives/(\w+)\.ipynb\) \| (\d+) \| (\d+)")
    listed = row.findall(lesson.cells[-1].source)
    assert [name for _, name, _, _ in listed] == [one.name for one in frame.lessons()["01"]]
    for title, name, points, minutes in listed:
        path = ROOT / "solutions" / "01_collectives" / f"{name}.ipynb"
        question = nbformat.read(path, as_version=4).cells[0].source
        assert question.startswith(f"# {title}\n\n**{points} points · {minutes} minutes · ")
