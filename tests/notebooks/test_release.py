"""Exercises are what their solutions give: no answer in them, nothing by hand or half written."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import nbformat
import pytest

from course_classroom.notebook import notebooks, release

ROOT = Path(__file__).resolve().parents[2]
ONE = Path("01_collectives") / "ring_all_reduce.ipynb"


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Path:
    """Two lessons' solutions, released once."""
    folder = tmp_path_factory.mktemp("released")
    for lesson in (ONE.parent, "03_f_and_g"):
        shutil.copytree(ROOT / "solutions" / lesson, folder / "solutions" / lesson)
    release.release(folder)
    return folder


@pytest.fixture
def tree(released, tmp_path) -> Path:
    """A copy of them."""
    return shutil.copytree(released, tmp_path, dirs_exist_ok=True)


def edit(path: Path, change) -> None:
    notebook = nbformat.read(path, as_version=4)
    change(notebook)
    nbformat.write(notebook, path)


def test_the_committed_exercises_are_what_the_solutions_give():
    assert release.check(ROOT) == []


def test_releasing_twice_changes_nothing(tree):
    first = (tree / "exercises" / ONE).read_bytes()
    assert release.release(tree) == []
    assert (tree / "exercises" / ONE).read_bytes() == first
    assert release.check(tree) == []


def test_no_answer_and_no_output_is_handed_out_and_a_check_cell_is_locked(tree):
    text = (tree / "exercises" / ONE).read_text()
    cells = nbformat.reads(text, as_version=4).cells
    assert "SOLUTION" not in text and "isend(chunks" not in text
    assert all(not c.get("outputs") and c.get("execution_count") is None for c in cells)
    answer = next(c for c in cells if "def ring_all_reduce" in c.source)
    assert answer.source.startswith("%%ranks\n")  # the magic and the signature are still there
    assert answer.source.endswith("# Your answer goes here.\n    ...")
    (graded,) = [c for c in cells if c.metadata.get("nbgrader", {}).get("grade")]
    assert graded.metadata.nbgrader.points == 4 and graded.metadata.editable is False
    assert len(graded.metadata.nbgrader.checksum) == 32


def test_a_hand_edit_is_found_and_undone(tree):
    path = tree / "exercises" / ONE
    edit(path, lambda nb: nb.cells[0].update(source="changed by hand"))
    (said,) = release.check(tree)
    assert "ring_all_reduce.ipynb differs" in said and "solutions/" in said
    assert release.release(tree) == [f"exercises/{ONE.as_posix()}"]
    assert release.check(tree) == []


def test_a_missing_a_broken_and_a_stray_exercise_are_each_named(tree):
    path = tree / "exercises" / ONE
    path.write_text("not a notebook")
    assert "differs" in release.check(tree)[0]
    path.unlink()
    assert "missing" in release.check(tree)[0]
    stray = path.parent / "stray.ipynb"
    shutil.copy(tree / "solutions" / ONE, stray)
    assert any("stray.ipynb has no solution" in said for said in release.check(tree))
    release.release(tree)
    assert path.exists() and stray.exists()
    release.release(tree, remove=True)
    assert path.exists() and not stray.exists()


def test_without_solutions_nothing_is_removed(tree):
    shutil.rmtree(tree / "solutions" / "01_collectives")  # of one lesson
    before = {path: path.read_bytes() for path in (tree / "exercises").glob("*/*.ipynb")}
    release.release(tree)
    left = {path: path.read_bytes() for path in (tree / "exercises").glob("*/*.ipynb")}
    assert left == before
    assert any("release --remove" in said for said in release.check(tree))
    shutil.rmtree(tree / "solutions")  # and of all
    for act in (release.release, release.check, functools.partial(release.release, remove=True)):
        with pytest.raises(release.NoSolutions, match="nothing was changed"):
            act(tree)
    assert {path: path.read_bytes() for path in (tree / "exercises").glob("*/*.ipynb")} == before


def test_the_command_refuses_without_solutions(tree, monkeypatch, capsys):
    from course_classroom.cli import app, author

    shutil.rmtree(tree / "solutions")
    monkeypatch.setattr(author, "ROOT", tree)
    with pytest.raises(SystemExit) as ended:
        app(["release", "--remove"], standalone_mode=True)
    assert ended.value.code == 2 and "a full copy of the course" in capsys.readouterr().err
    assert len(list((tree / "exercises").glob("*/*.ipynb"))) > 8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda nb: nb.cells[2].metadata.pop("nbgrader"), "not marked as a solution"),
        (lambda nb: nb.cells[2].update(source="%%ranks\ny = 1"), "### BEGIN SOLUTION"),
        (lambda nb: nb.cells[-1].metadata.pop("nbgrader"), "nothing is graded"),
    ],
)
def test_a_solution_that_would_make_a_bad_exercise_is_refused(tree, change, says):
    before = (tree / "exercises" / ONE).read_bytes()
    edit(tree / "solutions" / ONE, change)
    with pytest.raises(release.BadSolution, match=says):
        release.release(tree)
    assert (tree / "exercises" / ONE).read_bytes() == before


@pytest.mark.slow
def test_a_blank_exercise_runs_through_and_is_not_attempted():
    path = ROOT / "exercises" / ONE
    ran = notebooks.execute(nbformat.read(path, as_version=4), path, 2)
    assert not [o for c in ran.cells for o in c.get("outputs", []) if o.output_type == "error"]
    verdict = ran.cells[-1].outputs[-1].data
    assert verdict["text/plain"] == "0"
    assert "not attempted" in verdict["text/html"]
