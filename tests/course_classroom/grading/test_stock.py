"""nbgrader's own commands on our folders: the same notebooks, and the same marks as ours.

Run as an instructor runs them, in a course folder made of solutions/ and nbgrader_config.py.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import nbformat
import pytest

from tests.course_classroom.grading.hand_in import (
    LESSONS,
    MEAN,
    RIGHT,
    ROOT,
    WHO,
    WHO_RIGHT,
    WRONG,
    answered,
    blank,
    cell,
    for_nbgrader,
    save,
    with_cell,
)
from tests.course_classroom.grading.test_twelve import FORGED, grade
from tests.support.commands import python

ANSWERS = {MEAN: (RIGHT, WRONG), WHO: (WHO_RIGHT, WHO_RIGHT.replace("len('abc')", "30"))}


def nbgrader(*words: str, cwd: Path) -> None:
    done = python("-m", "nbgrader", *words, cwd=cwd, env=for_nbgrader(cwd))
    assert done.returncode == 0, done.stderr


def exported(cwd: Path) -> dict[str, tuple[float, float]]:
    nbgrader("export", "--to", "stock.csv", cwd=cwd)
    with open(cwd / "stock.csv", newline="") as file:
        found = list(csv.DictReader(file))
    return {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in found}


@pytest.mark.slow
@pytest.mark.parametrize("name", [WHO, MEAN])
def test_stock_commands_give_the_same_notebook_and_the_same_marks(tmp_path_factory, name):
    cwd = tmp_path_factory.mktemp("n")
    lesson, file = LESSONS[name], f"{name}.ipynb"
    (cwd / "solutions" / lesson).mkdir(parents=True)
    shutil.copy(ROOT / "solutions" / lesson / file, cwd / "solutions" / lesson)
    shutil.copy(ROOT / "nbgrader_config.py", cwd)
    nbgrader("generate_assignment", lesson, cwd=cwd)
    assert json.loads((cwd / "release" / lesson / file).read_text()) == json.loads(
        (ROOT / "exercises" / lesson / file).read_text()
    )
    right, wrong = (answered(source, name) for source in ANSWERS[name])
    for student, notebook in {"ana": right, "bob": wrong, "cem": blank(name)}.items():
        save(notebook, cwd / "submitted" / student / lesson / file)
    nbgrader("autograde", lesson, cwd=cwd)
    stock = exported(cwd)
    done = grade("submitted", "--sandboxed", "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert stock == {row["student"]: (row["points"], row["max"]) for row in rows}
    assert [points > 0 for points, _ in stock.values()] == [True, False, False]


@pytest.mark.slow
def test_what_fools_the_stock_commands_does_not_fool_ours(tmp_path_factory):
    """Why marks are not read from a notebook that was run with the learner's cells in it."""
    cwd = tmp_path_factory.mktemp("o")
    lesson, file = LESSONS[WHO], f"{WHO}.ipynb"
    shutil.copytree(ROOT / "solutions" / lesson, cwd / "solutions" / lesson)
    (cwd / "solutions" / lesson / f"{MEAN}.ipynb").unlink()
    shutil.copy(ROOT / "nbgrader_config.py", cwd)
    nbgrader("generate_assignment", lesson, cwd=cwd)
    forged = blank(WHO)
    place = forged.cells.index(cell(forged, f"{WHO}-check"))
    save(
        with_cell(forged, FORGED.replace('"2"', '"1"'), place),
        cwd / "submitted" / "dee" / lesson / file,
    )
    nbgrader("autograde", lesson, cwd=cwd)
    assert exported(cwd)["dee"] == (1, 1)
    done = grade("submitted", "--sandboxed", "--json", cwd=cwd)
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["outcome"], row["points"]) == ("not attempted", 0)


def test_a_check_cell_as_nbgrader_reads_it(tmp_path):
    """A verdict's text is its points: what stock nbgrader makes of each of the three outcomes."""
    from nbgrader.utils import determine_grade

    from course_classroom.judge.frame import NOT_ATTEMPTED, RIGHT, WRONG, Verdict

    notebook = blank(MEAN)
    check = cell(notebook, f"{MEAN}-check")
    for outcome, points in ((RIGHT, 2), (WRONG, 0), (NOT_ATTEMPTED, 0)):
        verdict = Verdict(MEAN, outcome, "", "", points, 2)
        data = {"text/plain": repr(verdict)}
        check.outputs = [nbformat.v4.new_output("execute_result", data)]
        assert determine_grade(check) == (points, 2)
