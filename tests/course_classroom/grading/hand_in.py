"""Notebooks as learners hand them in: the exercise of today with an answer, and with damage."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_classroom.notebook.release import exercise_from

ROOT = Path(__file__).resolve().parents[3]
RING, MEAN, WHO = "ring_all_reduce", "mean_over_ranks", "who_knows"
LESSONS = {RING: "01_collectives", MEAN: "00_start_here", WHO: "00_start_here"}

RIGHT = """%%ranks
def mean_over_ranks(x, group):
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y / group.size()
"""
WRONG = RIGHT.replace(" / group.size()", "")
WHO_RIGHT = "who_knows = {'a': 3, 'b': 2 - 1, 'c': 0, 'd': len('abc'), 'e': 2}"


def solution(name: str) -> NotebookNode:
    return nbformat.read(ROOT / "solutions" / LESSONS[name] / f"{name}.ipynb", as_version=4)


@functools.cache
def _released(name: str) -> str:
    return nbformat.writes(exercise_from(solution(name)))


def blank(name: str = MEAN) -> NotebookNode:
    return nbformat.reads(_released(name), as_version=4)


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    """The cell with this grade_id."""
    ids = [c.metadata.get("nbgrader", {}).get("grade_id") for c in notebook.cells]
    return notebook.cells[ids.index(name)]


def answered(source: str, name: str = MEAN) -> NotebookNode:
    notebook = blank(name)
    cell(notebook, f"{name}-answer").source = source
    return notebook


def with_cell(notebook: NotebookNode, source: str, place: int = 1) -> NotebookNode:
    """The notebook with a cell of the learner's own."""
    notebook.cells.insert(place, nbformat.v4.new_code_cell(source))
    return notebook


def for_nbgrader(folder: Path) -> dict[str, str]:
    """Variables for a process that calls nbgrader: nothing of the user's, and alembic by name."""
    return {
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "JUPYTER_CONFIG_DIR": str(folder / "none"),
        "IPYTHONDIR": str(folder / "none"),
        "COURSE_RUNTIME_DIR": str(folder / "r"),
    }


def save(notebook: NotebookNode, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


def body(lines: str) -> str:
    """An answer whose function starts with these lines."""
    first = "def mean_over_ranks(x, group):\n"
    return RIGHT.replace(first, first + "".join(f"    {line}\n" for line in lines.splitlines()))
