"""Each exercise notebook says what its check says, each check has its notebook, for all lessons."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Mapping
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven"]


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
    (verdict,) = graded[0].outputs
    assert html.escape(exercise.when_right) in verdict["data"]["text/html"], "execute it anew"
    assert 2 < len(exercise.hints) < 6


def test_every_exercise_has_a_notebook():
    wanted = {(lesson, one.name) for lesson, found in frame.lessons().items() for one in found}
    assert {(path.parent.name[:2], path.stem) for path in solutions()} == wanted


def is_written(lesson: str) -> bool:
    return any(ROOT.glob(f"notebooks/{lesson}_*.ipynb"))


def lessons() -> list[str]:
    every = sorted(frame.lessons())[1:]  # lesson 00 has no table: it shows how an exercise goes
    return [lesson for lesson in every if is_written(lesson)]


def ahead() -> list[str]:
    """Lessons whose exercises are there before they are."""
    return [lesson for lesson in sorted(frame.lessons()) if not is_written(lesson)]


@pytest.mark.parametrize("lesson", ahead())
def test_the_readme_tells_which_exercises_are_ahead_of_their_lesson(lesson):
    minutes = 0
    for path in ROOT.glob(f"solutions/{lesson}_*/*.ipynb"):
        head = nbformat.read(path, as_version=4).cells[0].source
        minutes += int(re.search(r" · (\d+) minutes · ", head).group(1))
    line = re.search(rf"^\| {lesson} \| .*", (ROOT / "README.md").read_text(), re.MULTILINE).group()
    count = len(frame.lessons()[lesson])
    assert line.endswith(f"| {minutes} | planned; its {count} exercises are **there** |")


@pytest.mark.parametrize("lesson", lessons())
def test_the_lesson_lists_its_exercises_with_points_and_minutes(lesson):
    (path,) = ROOT.glob(f"notebooks/{lesson}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    rows = re.findall(
        r"\[(.+?)\]\(\.\./exercises/(\w+/\w+)\.ipynb\) \| (\d+) \| (\d+)", cells[-1].source
    )
    known = [(one.title, one.name, one.points) for one in frame.lessons()[lesson]]
    assert [(title, place.split("/")[1], int(points)) for title, place, points, _ in rows] == known
    for title, place, points, minutes in rows:
        question = (
            nbformat.read(ROOT / "solutions" / f"{place}.ipynb", as_version=4).cells[0].source
        )
        count = f"{points} point{'s' if points != '1' else ''}"
        assert question.startswith(f"# {title}\n\n**{count} · {minutes} minutes · ")
    to_read, to_do, count = re.search(
        r"^(\d+) minutes to read, (\d+) for (?:all|the) (\w+) exercises\.",
        cells[0].source,
        re.MULTILINE,
    ).groups()
    assert (int(to_do), NUMBERS.index(count)) == (sum(int(row[3]) for row in rows), len(rows))
    line = re.search(rf"^\| {lesson} \| .*", (ROOT / "README.md").read_text(), re.MULTILINE).group()
    assert f"| {to_read} | {to_do} | **there**, {len(rows)} exercises |" in line


def filled_in() -> list[Path]:
    return sorted((ROOT / "exercises").glob("*/*.ipynb"))


@pytest.mark.parametrize("path", filled_in(), ids=lambda path: path.stem)
def test_an_exercise_leaves_the_place_of_its_answer(path):
    """A function with its arguments, or a dictionary with its keys and a blank for each."""
    codes = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    found = []
    for code in codes:
        body = re.sub(r"^%.*$", "", code, flags=re.MULTILINE)
        for one in ast.walk(ast.parse(body)):
            if isinstance(one, ast.FunctionDef) and one.name == path.stem:
                found.append(one)
            elif isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == path.stem:
                assert isinstance(one.value, ast.Dict) and one.value.keys
                assert all(ast.unparse(value) == "..." for value in one.value.values)
                lines = body.splitlines()[one.lineno - 1 : one.end_lineno]
                told = [line for line in lines if line.strip().startswith("#")]
                assert not told, f"what stood beside the answer may give it away: {told}"
                found.append(one)
    assert len(found) == 1, f"{path.stem} does not say where its answer goes"
