"""`course grade` needs exercises/ and the checks alone, and only as they were released."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from typer.testing import CliRunner

from course_classroom.cli import app
from course_classroom.cli import grade as command
from course_classroom.grading import handouts, intact, marking, walls
from course_classroom.grading.walls import Walls
from course_classroom.judge import frame
from tests.course_classroom.grading.hand_in import LESSONS, RIGHT, RING, ROOT, answered, cell, save

compute_checksum = pytest.importorskip("nbgrader.utils").compute_checksum
PLACE = Path("exercises") / LESSONS[RING] / f"{RING}.ipynb"


@pytest.fixture
def tree(tmp_path) -> Path:
    """A course that has exercises/ and nothing else."""
    shutil.copytree(ROOT / "exercises", tmp_path / "course" / "exercises")
    return tmp_path / "course"


@pytest.fixture
def course(tree, tmp_path, monkeypatch):
    """`course grade in` in that course; the result, and the exercises it would grade by."""
    monkeypatch.setattr(command, "ROOT", tree)
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    monkeypatch.chdir(tmp_path)
    save(answered(RIGHT), tmp_path / "in" / "ana.ipynb")
    grades = []

    def note(self, submissions):
        grades.append(self.handouts)
        return []

    monkeypatch.setattr(marking.Grading, "grade", note)

    def call(*words):
        done = CliRunner().invoke(app, ["grade", "in", "--sandboxed", *words])
        return done, grades.pop() if grades else None

    return call


def test_without_solutions_it_grades_by_all_the_exercises_and_all_their_points(course):
    done, given = course("--json")
    assert (done.exit_code, json.loads(done.stdout)["rows"]) == (0, [])
    assert given == handouts.from_exercises(ROOT)
    worth = {cell.exercise: cell.points for one in given for cell in one.checks}
    assert worth == {name: one.points for name, one in frame.exercises().items()}
    assert "can read the answers" not in done.stderr


def test_solutions_are_not_read_and_it_is_said_once_that_they_can_be(course, tree, monkeypatch):
    monkeypatch.setattr(walls, "built", Walls)  # nothing keeps an answer from them
    (tree / "solutions" / LESSONS[RING]).mkdir(parents=True)
    (tree / "solutions" / LESSONS[RING] / f"{RING}.ipynb").write_text("no notebook")
    (tree / ".git").mkdir()
    done, given = course()
    assert (done.exit_code, given) == (0, handouts.from_exercises(ROOT))
    assert done.stderr.count(f"can read the answers in {tree}: solutions/, .git/.") == 1
    monkeypatch.setattr(walls, "built", lambda: Walls(landlock=1))
    assert "can read the answers" not in course()[0].stderr


def edit(path: Path, change, *, sealed: bool = False) -> None:
    """Change a notebook; `sealed`: with checksums that fit what it says then."""
    notebook = nbformat.read(path, as_version=4)
    change(notebook)
    for one in notebook.cells if sealed else ():
        if "nbgrader" in one.metadata:
            one.metadata.nbgrader.checksum = compute_checksum(one)
    nbformat.write(notebook, path)


def without(name: str):
    return lambda notebook: notebook.cells.remove(cell(notebook, name))


def set_check(**marks):
    return lambda notebook: cell(notebook, f"{RING}-check").metadata.nbgrader.update(marks)


def write(name: str, source: str):
    return lambda notebook: cell(notebook, name).update(source=source)


CHECK, ANSWER = (f"{RING}-{part}" for part in ("check", "answer"))
DAMAGE = {
    "gone": (lambda path: path.unlink(), f"{RING} of lesson 01 (4 points) is missing"),
    "a lesson gone": (lambda path: shutil.rmtree(path.parent), "is missing; and 2 more"),
    "all gone": (lambda path: shutil.rmtree(path.parents[1]), "there are no exercises in it"),
    "cut off": (
        lambda path: path.write_text(path.read_text()[:900]),
        "is no longer an exercise notebook",
    ),
    "answered": (
        lambda path: edit(path, write(ANSWER, f"%%ranks\ndef {RING}(x, group):\n    return x")),
        f"cell {ANSWER}, was changed",
    ),
    "another check": (lambda path: edit(path, write(CHECK, "4")), f"{CHECK}, was changed"),
    "no check": (lambda path: edit(path, without(CHECK)), f"{RING} of lesson 01 (4 points) is"),
    "not graded": (lambda path: edit(path, set_check(grade=False), sealed=True), "is missing"),
    "fewer points, sealed": (
        lambda path: edit(path, set_check(points=1), sealed=True),
        f"{RING} gives 1 points, but its check gives 4",
    ),
    "a check that is none, sealed": (
        lambda path: edit(path, write(CHECK, "4"), sealed=True),
        f"{RING} of lesson 01 (4 points) is missing",
    ),
    "a copy": (
        lambda path: shutil.copy(path, path.with_name("copy.ipynb")),
        f"{RING} of lesson 01 (4 points) has 2 check cells",
    ),
    "renamed": (lambda path: path.rename(path.with_name("mine.ipynb")), "01_collectives/mine"),
    "in another lesson": (
        lambda path: path.rename(path.parents[1] / "02_one_product" / path.name),
        "is checked in 02_one_product",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_exercises_that_are_not_as_released_are_refused_in_words(course, tree, what):
    damage, says = DAMAGE[what]
    damage(tree / PLACE)
    done, given = course("--lesson", "00")
    assert (done.exit_code, given) == (1, None)
    assert says in done.stderr, done.stderr
    assert "`course release`" in done.stderr and "nothing was graded" in done.stderr
    assert not Path("grades.csv").exists()


def test_a_notebook_that_cannot_be_read_is_named(tree, monkeypatch):
    def refuse(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(nbformat, "read", refuse)
    with pytest.raises(intact.Unfit, match=r"cannot be read \(Permission denied\)"):
        intact.intact(tree)


def test_a_question_of_the_instructor_s_own_is_no_damage(tree):
    """A graded cell that calls no check is graded by hand, as nbgrader does."""

    def add(notebook):
        notebook.cells.append(nbformat.v4.new_markdown_cell("In your own words: why a ring?"))
        marks = {"grade": True, "solution": True, "locked": False, "points": 2, "grade_id": "why"}
        notebook.cells[-1].metadata.nbgrader = {**marks, "schema_version": 3}

    edit(tree / PLACE, add, sealed=True)
    (ring,) = [one for one in intact.intact(tree) if one.name == RING]
    assert [(cell.exercise, cell.points) for cell in ring.checks] == [(RING, 4), ("", 2)]
