"""Each exercise notebook says what its check says, each check has its notebook, for all lessons."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from course_classroom.judge import frame

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven"]


@dataclass(frozen=True)
class Head:
    """What an exercise says of itself below its title."""

    points: int
    minutes: int
    difficulty: str  # bars, as in the lesson's table
    importance: str
    core: bool
    lesson: str
    sections: tuple[tuple[str, str, str], ...]  # that it rests on: heading, notebook, cell id

    @classmethod
    def of(cls, source: str) -> Head:
        lines = source.splitlines()
        bars = "([●○]{5})"
        points, minutes, difficulty, importance, core = re.fullmatch(
            rf"\*\*(\d+) points? · (\d+) minutes\*\* · difficulty {bars} · importance {bars}"
            r"( · \*\*core path\*\*)?",
            lines[2],
        ).groups()
        lesson = re.match(r"Lesson (\d\d) · rests on \[", lines[4]).group(1)
        section = r"\[(.+?)\]\(\.\./\.\./notebooks/(\S+?\.ipynb)#cell-id=([\w-]+)\)"
        sections = re.findall(section, lines[4])
        assert lines[4].count("](") == len(sections)
        return cls(
            int(points), int(minutes), difficulty, importance, bool(core), lesson, tuple(sections)
        )


@functools.cache
def read(path: Path) -> list[nbformat.NotebookNode]:
    return nbformat.read(path, as_version=4).cells


def headings(path: Path) -> dict[str, str]:
    """The first heading of each cell of a notebook, by the cell's id."""
    found = {}
    for cell in read(path):
        heading = re.search(r"^(?:> )?#+ (.+)$", cell.source, re.MULTILINE)
        if cell.cell_type == "markdown" and heading:
            found[cell.id] = re.sub(r"[`*$]", "", heading.group(1)).strip()
    return found


def solutions() -> list[Path]:
    return sorted((ROOT / "solutions").glob("*/*.ipynb"))


each = pytest.mark.parametrize("path", solutions(), ids=lambda path: path.stem)


@each
def test_an_exercise_leads_to_the_section_that_it_rests_on(path):
    head = Head.of(read(path)[0].source)
    assert head.lesson == path.parent.name[:2] and head.sections
    assert head.sections[0][1].startswith(head.lesson)
    for bars in (head.difficulty, head.importance):
        assert re.fullmatch("●+○*", bars)
    for text, notebook, cell in head.sections:
        there = headings(ROOT / "notebooks" / notebook)
        assert cell in there, f"{notebook} has no section {cell}: {sorted(there)}"
        assert there[cell] == re.sub(r"[`*$]", "", text)


@each
def test_a_solution_says_why_and_an_exercise_does_not(path):
    cells = read(path)
    marks = ["commentary" in cell.metadata.get("tags", []) for cell in cells]
    (place,) = [i for i, marked in enumerate(marks) if marked]
    answer = max(i for i, c in enumerate(cells) if c.metadata.get("nbgrader", {}).get("solution"))
    assert place == answer + 1 and "nbgrader" not in cells[place].metadata
    assert 60 <= len(cells[place].source.split()) <= 260
    handed_out = (ROOT / "exercises" / path.relative_to(ROOT / "solutions")).read_text()
    assert "commentary" not in handed_out and "### BEGIN" not in handed_out


@each
def test_a_notebook_is_an_exercise_of_its_lesson_and_says_what_the_frame_says(path, monkeypatch):
    lesson = path.parent.name[:2]
    mine: Mapping[str, object] = {one.name: one for one in frame.lessons()[lesson]}
    assert path.stem in mine
    exercise = mine[path.stem]
    cells = read(path)
    assert cells[0].source.startswith(f"# {exercise.title}\n")
    head = Head.of(cells[0].source)
    graded = [c for c in cells if c.metadata.get("nbgrader", {}).get("grade")]
    assert [c.metadata.nbgrader.points for c in graded] == [exercise.points] == [head.points]
    assert [c.source for c in graded] == [f'check("{path.stem}")']
    answer = next(c.source for c in cells if c.metadata.get("nbgrader", {}).get("solution"))
    assert re.search(rf"^(def {path.stem}\(|{path.stem} = \{{)", answer, re.MULTILINE)
    assert any(
        "The cell below the check, `hint()`, gives you one more hint" in c.source for c in cells
    )
    (shown,) = graded[0].outputs
    points = exercise.points
    verdict = frame.Verdict(path.stem, frame.RIGHT, "", exercise.when_right, points, points)
    monkeypatch.chdir(path.parent)
    assert shown["data"]["text/html"] == verdict._repr_html_(), "execute it anew"
    assert 2 < len(exercise.hints) < 6


def test_every_exercise_has_a_notebook():
    wanted = {(lesson, one.name) for lesson, found in frame.lessons().items() for one in found}
    assert {(path.parent.name[:2], path.stem) for path in solutions()} == wanted


def lessons() -> list[str]:
    return sorted(frame.lessons())[1:]  # lesson 00 has no table: it shows how an exercise goes


@pytest.mark.parametrize("lesson", lessons())
def test_the_lesson_lists_its_exercises_with_points_and_minutes(lesson):
    (path,) = ROOT.glob(f"notebooks/{lesson}_*.ipynb")
    cells = read(path)
    rows = re.findall(
        r"^\| \[(.+?)\]\(\.\./exercises/(\w+/\w+)\.ipynb\) \| (\d+) \| (\d+) \| ([●○]{5}) "
        r"\| ([●○]{5}) \| (.+) \|$",
        cells[-1].source,
        re.MULTILINE,
    )
    known = [(one.title, one.name, one.points) for one in frame.lessons()[lesson]]
    assert [(title, place.split("/")[1], int(points)) for title, place, points, *_ in rows] == known
    cores = []
    for title, place, points, minutes, difficulty, importance, what in rows:
        question = read(ROOT / "solutions" / f"{place}.ipynb")[0].source
        head = Head.of(question)
        assert question.startswith(f"# {title}\n\n**{points} point")
        assert (head.points, head.minutes) == (int(points), int(minutes))
        assert (head.difficulty, head.importance) == (difficulty, importance)
        assert head.core == what.startswith("**core**")
        cores += [title] * head.core
    assert cores, "the core path needs an exercise"
    to_read, to_do, count = re.search(
        r"^(\d+) minutes to read, (\d+) for (?:all|the) (\w+) exercises\.",
        cells[0].source,
        re.MULTILINE,
    ).groups()
    assert (int(to_do), NUMBERS.index(count)) == (sum(int(row[3]) for row in rows), len(rows))
    path_of_core = re.search(r"^\*\*Core path\*\*: (.+)$", cells[0].source, re.MULTILINE).group(1)
    for title in cores:
        assert f"*{title}*" in path_of_core
    there = set(headings(path).values()) | set(cores)
    assert set(re.findall(r"\*(.+?)\*", path_of_core)) <= there
    line = re.search(rf"^\| {lesson} \| .*", (ROOT / "README.md").read_text(), re.MULTILINE).group()
    assert f" | {to_read} | {to_do} | " in line


@each
def test_an_exercise_leaves_the_place_of_its_answer_and_a_cell_for_hints(path):
    """A function with its arguments, or a dictionary with its keys and a blank for each."""
    exercise = ROOT / "exercises" / path.relative_to(ROOT / "solutions")
    cells = read(exercise)
    (place,) = [i for i, cell in enumerate(cells) if cell.id == f"{path.stem}-check"]
    hint = cells[place + 1]
    assert (hint.id, hint.cell_type, hint.source) == (f"{path.stem}-hint", "code", "hint()")
    assert "nbgrader" not in hint.metadata, "nothing of it is graded or kept"
    found = []
    for code in [c.source for c in cells if c.cell_type == "code"]:
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


def minutes() -> dict[str, tuple[int, int, int]]:
    """Of each lesson: to read, for the exercises of its core path, for all."""
    found = {}
    for path in sorted(ROOT.glob("notebooks/[0-9][0-9]_*.ipynb")):
        lesson = path.name[:2]
        heads = [Head.of(read(one)[0].source) for one in ROOT.glob(f"solutions/{lesson}_*/*.ipynb")]
        source = read(path)[0].source
        to_read = int(re.search(r"^(\d+) minutes to read", source, re.MULTILINE).group(1))
        core = sum(head.minutes for head in heads if head.core)
        found[lesson] = (to_read, core, sum(head.minutes for head in heads))
    return found


def test_the_guide_plans_with_the_lessons_own_minutes():
    guide, known = (ROOT / "docs" / "instructors.md").read_text(), minutes()
    rows = re.findall(r"^\| (\d\d) \| (\d+) \| (\d+) \| (\d+) \|$", guide, re.MULTILINE)
    assert {lesson: tuple(map(int, rest)) for lesson, *rest in rows} == known
    core = {lesson: to_read + some for lesson, (to_read, some, _) in known.items()}
    routes = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| ([\d+ ]+) \|$", guide, re.MULTILINE))
    days = {
        "one day, tensor parallelism": ["00 01 02 03 04"],
        "one day, ZeRO": ["00 01", "09 10 11"],
        "three days, tensor parallelism and ZeRO": ["00 01 02 03", "04 05 06 07", "09 10 11"],
    }
    for name, parts in days.items():
        planned = " + ".join(str(sum(core[one] for one in day.split())) for day in parts)
        assert routes[name] == planned
    assert routes["everything, all exercises"] == str(sum(a + c for a, _, c in known.values()))
