"""The nbgrader commands of docs/instructors.md, walked as they are written there, on a real clone.

The lines come out of the guide's own text, so that guide and test cannot drift apart. Only what
stands for a reader's own machine is replaced: where the course is cloned from, and /home.
"""

from __future__ import annotations

import csv
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from traitlets.config import Config

from tests.course_classroom.grading.hand_in import ROOT, for_nbgrader, with_cell
from tests.course_classroom.grading.test_learners_copy import git, whole_clone

LESSON = "01_collectives"
URL, HOMES = "https://…", "/home/*"
SECTION, COLLECT = "### With nbgrader's own commands", "## Collect and grade"


def blocks(heading: str) -> list[str]:
    """The blocks of commands below a heading of the guide, up to the next heading."""
    guide = (ROOT / "docs" / "instructors.md").read_text()
    (after,) = guide.split(f"\n{heading}\n")[1:]
    return re.findall(r"^```\n(.*?)^```$", re.split(r"^#+ ", after, flags=re.M)[0], re.M | re.S)


def before_collecting() -> str:
    return blocks(SECTION)[0]


def collecting() -> str:
    """The loop over the learners' homes, as far as its `done`."""
    (loop,) = re.findall(r"^for home in .*?^done$", blocks(COLLECT)[0], re.M | re.S)
    return loop


def after_collecting() -> str:
    return "".join(blocks(SECTION)[1:])


@pytest.fixture
def node(tmp_path_factory) -> Path:
    """A machine on which the course lies in a repository, and a teacher has a home."""
    node = tmp_path_factory.mktemp("g")
    whole_clone(node / "course")
    (node / "teacher").mkdir()
    return node


def walk(node: Path, *parts: str) -> Path:
    """Run the lines, which end at the first that fails; the teacher's clone."""
    script = "\n".join(parts).replace(URL, f"{node}/course").replace(HOMES, f"{node}/homes/*")
    environment = {key: value for key, value in os.environ.items() if "PYTHONPATH" not in key}
    environment |= {"HOME": str(node / "teacher"), **for_nbgrader(node)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=node / "teacher",
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stderr[-4000:]}"
    assert "Skipping existing" not in done.stderr
    return node / "teacher" / "grading"


def changed(clone: Path) -> str:
    """What git would commit in the clone."""
    done = git(clone, "status", "--porcelain", "--untracked-files=all")
    assert done.returncode == 0, done.stderr
    return done.stdout


def hand_in(node: Path, name: str, folder: str, *, only: str = "*") -> None:
    """A learner's home with the lesson's notebooks of `folder` in it."""
    work = node / "homes" / name / "course-work" / "exercises" / LESSON
    work.mkdir(parents=True)
    for path in (ROOT / folder / LESSON).glob(f"{only}.ipynb"):
        shutil.copy(path, work)


def test_the_guide_shows_the_commands_from_the_clone_to_the_marks():
    first, second = before_collecting(), after_collecting()
    assert URL in first and HOMES in collecting()
    verbs = re.findall(r"^nbgrader (\w+)", first + second, re.M)
    assert verbs == ["generate_assignment", "autograde", "generate_feedback", "export"]
    assert set(re.findall(r"\d\d_\w+", first + collecting() + second)) == {LESSON}


@pytest.mark.slow
def test_the_whole_walk_gives_marks_and_feedback(node):
    hand_in(node, "ana", "solutions")
    hand_in(node, "bo", "exercises", only="tree_or_ring")
    (node / "homes" / "cem").mkdir()  # has not begun
    path = node / "homes" / "bo" / "course-work" / "exercises" / LESSON / "tree_or_ring.ipynb"
    which = "import course_lib; print('checks of', course_lib.__file__)"
    nbformat.write(with_cell(nbformat.read(path, as_version=4), which), path)
    loop = f"set +e\n{collecting()}\nset -e"  # it passes over homes without work
    clone = walk(node, before_collecting(), loop, after_collecting())
    with open(clone / "nbgrader.csv", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    top = float(rows["ana"]["max_score"])
    assert top > 4
    assert {name: float(row["score"]) for name, row in rows.items()} == {"ana": top, "bo": 0}
    pages = {path.stem for path in (clone / "feedback" / "ana" / LESSON).glob("*.html")}
    assert pages == {path.stem for path in (ROOT / "exercises" / LESSON).glob("*.ipynb")}
    assert [path.name for path in (clone / "feedback").glob("bo/*/*")] == ["tree_or_ring.html"]
    graded = (clone / "autograded" / "bo" / LESSON / "tree_or_ring.ipynb").read_text()
    assert f"checks of {clone}/course_lib/__init__.py" in graded  # whatever the environment holds
    assert changed(clone) == ""


def test_what_nbgrader_starts_by_name_is_found_without_an_activated_environment(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    given = Config()
    runpy.run_path(str(ROOT / "nbgrader_config.py"), init_globals={"get_config": lambda: given})
    assert shutil.which("alembic") == os.path.join(os.path.dirname(sys.executable), "alembic")
