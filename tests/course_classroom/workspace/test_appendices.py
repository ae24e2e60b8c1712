"""An appendix is a notebook with a letter: copied, named, reset and counted as a lesson is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_classroom import workspace
from course_classroom.cli import app, learner
from course_classroom.workspace import overview, show
from course_classroom.workspace.handed_out import first_lesson, title

LESSON, MEAN = "notebooks/00_start.ipynb", "exercises/00_start/mean.ipynb"
CLUSTERS, MEASURING = "notebooks/appendix_c_clusters.ipynb", "notebooks/appendix_b_measuring.ipynb"


def notebook(text: str) -> str:
    cell = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": text}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small course: a lesson, two appendices, an exercise."""
    for path, heading in {
        LESSON: "# 00 · Start here",
        CLUSTERS: "# Appendix C · Clusters",
        MEASURING: "# Appendix B · Honest measuring",
        MEAN: "# The mean",
    }.items():
        file = tmp_path / "course" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(notebook(heading))
    (tmp_path / "course" / "course_lib").mkdir()
    return tmp_path / "course"


@pytest.fixture
def work(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(learner, "ROOT", root)
    monkeypatch.setenv("COURSE_WORK", str(tmp_path / "mine"))
    return tmp_path / "mine"


def course(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_appendices_are_copied_after_the_lessons_and_said(root, work):
    assert [item.path for item in workspace.items(root)] == [LESSON, MEASURING, CLUSTERS, MEAN]
    assert workspace.open_up(root, work).lines() == [
        f"Your own copies are in {work}: 1 lesson, 2 appendices and 1 exercise. "
        "Updates never overwrite them."
    ]
    assert (work / CLUSTERS).read_bytes() == (root / CLUSTERS).read_bytes()
    assert first_lesson(work) == LESSON, "a newcomer begins with a lesson"


def test_one_that_is_new_or_has_changed_is_called_by_its_letter(root, work):
    workspace.open_up(root, work)
    (root / CLUSTERS).write_text(notebook("# Appendix C · More clusters"))
    (root / "notebooks/appendix_d_formulas.ipynb").write_text(notebook("# Appendix D · Formulas"))
    said = workspace.open_up(root, work).lines()
    new = "appendix D (notebooks/appendix_d_formulas.ipynb)."
    assert said[0] == f"Missing in {work} and now copied again, as handed out: {new}"
    assert said[1].startswith("Appendix C has changed since your copy was made; yours is unchanged")


def test_the_parts_of_an_appendix_are_copied_and_named_apart_and_reset_together(root, work):
    parts = {
        f"notebooks/appendix_e{n}_{name.lower()}.ipynb": name
        for n, name in enumerate(("Tokenizers", "Quantization"), 1)
    }
    for n, (path, name) in enumerate(parts.items(), 1):
        (root / path).write_text(notebook(f"# Appendix E{n} · {name}"))
    found = [item for item in workspace.items(root) if item.path in parts]
    assert [(item.lesson, item.letter) for item in found] == [("E1", "E"), ("E2", "E")]
    assert [title(root, item) for item in found] == list(parts.values())
    workspace.open_up(root, work)
    for what, which in {"e": list(parts), "E2": list(parts)[1:]}.items():
        for path in parts:
            (work / path).write_text("mine")
        assert course("reset", what).exit_code == 0
        assert [path for path in parts if (work / path).read_text() != "mine"] == which


@pytest.mark.parametrize("what", ["C", "c", "appendix_c_clusters", CLUSTERS])
def test_reset_knows_an_appendix_by_its_letter_its_name_and_its_path(root, work, what):
    workspace.open_up(root, work)
    (work / CLUSTERS).write_text("mine")
    told = json.loads(course("reset", what, "--json").stdout)
    ((path, backup),) = [(one["path"], one["backup"]) for one in told["reset"]]
    assert path == CLUSTERS and (work / backup).read_text() == "mine"
    assert (work / CLUSTERS).read_bytes() == (root / CLUSTERS).read_bytes()


def test_status_shows_appendices_after_the_lessons(root, work):
    workspace.open_up(root, work)
    mark = work / "notebooks/.ipynb_checkpoints/appendix_c_clusters-checkpoint.ipynb"
    mark.parent.mkdir()
    mark.write_text("what JupyterLab leaves when a notebook is opened")
    told = json.loads(course("status", "--json").stdout)["lessons"]
    rows = {one["lesson"]: one for one in told}
    assert list(rows)[-2:] == ["B", "C"] and rows["B"]["title"] == "Honest measuring"
    assert rows["C"]["opened"] and not rows["B"]["opened"] and rows["C"]["of"] == 0
    listed = ["Appendix B  Honest measuring: not opened", "Appendix C  Clusters: opened"]
    assert course("status", "--everything").stdout.splitlines()[-3:-1] == listed
    said = course("status").stdout.splitlines()
    assert said[1] == listed[1] and said[2].startswith("In total"), "what was opened, and no more"
    assert said[3].startswith("2 lessons and appendices are not opened yet")


def test_the_table_of_a_room_says_of_an_appendix_whether_it_was_opened(root, work, capsys):
    workspace.open_up(root, work)
    (work / MEASURING).write_text(notebook("# my notes"))
    node = {"problem": "", "gpus": [], "claims": []}
    node |= {"cores": {"claimed": 0, "total": 2}, "memory": {"claimed": 0, "total": 1}}
    show.everybody(overview.room(work.parent, root), node)
    said = capsys.readouterr().out
    assert "┃ B      ┃ C ┃" in said and "opened │ – │" in said
