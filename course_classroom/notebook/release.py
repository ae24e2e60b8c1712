"""Generation of exercises from solutions: the same notebooks without answers, byte for byte.

nbgrader's own steps generate them without its database, so its stock commands give the same
notebooks. Nothing in exercises/ is written by hand.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_lib.files import write_whole

SOLUTIONS, EXERCISES = "solutions", "exercises"
# Output folder of nbgrader's own generate_assignment. It skips an assignment whose folder exists
# but has no database entry, and exercises/ exists in every clone.
RELEASED = "release"
# The replacement of an answer. It raises no error, so a blank notebook runs to its end and every
# check reports "not attempted".
STUB = "# Your answer goes here.\n..."


class BadSolution(ValueError):
    """An error for a solution that cannot become an exercise, with the cell and the remedy."""


def configuration():
    """Return nbgrader's configuration, for this module and for `nbgrader_config.py`."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.preprocessors import ClearSolutions
    from traitlets.config import Config

    from course_classroom.notebook.blanks import AddHint, ClearAnswers

    settings = Config()
    settings.CourseDirectory.source_directory = SOLUTIONS
    settings.CourseDirectory.release_directory = RELEASED
    settings.ClearSolutions.code_stub = {"python": STUB}
    steps = GenerateAssignment.preprocessors.default()
    ours = {ClearSolutions: [ClearAnswers, AddHint]}  # replaces the step that removes answers
    settings.GenerateAssignment.preprocessors = [x for s in steps for x in ours.get(s, [s])]
    return settings


class NoSolutions(FileNotFoundError):
    """An error for a missing solutions/, so that no exercise is made or removed."""


def exercise_from(solution: NotebookNode) -> NotebookNode:
    from nbgrader import preprocessors

    settings = configuration()
    notebook, resources = nbformat.from_dict(solution), {}
    for step in settings.GenerateAssignment.preprocessors:  # in nbgrader's order
        if step not in (preprocessors.IncludeHeaderFooter, preprocessors.SaveCells):
            notebook, resources = step(config=settings).preprocess(notebook, resources)
    return notebook


def release(root: Path, *, remove: bool = False) -> list[str]:
    """Write exercises/ from solutions/; return the files that were changed, added or, with
    `remove`, removed because they have no solution."""
    changed, wanted = [], _wanted(root)
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
            changed.append(_name(path, root))
    for path in _orphans(root, wanted) if remove else ():
        path.unlink()
        changed.append(_name(path, root))
    return changed


def check(root: Path) -> list[str]:
    """Describe the differences between exercises/ and the exercises that solutions/ gives."""
    differences, wanted = [], _wanted(root)
    for path, text in wanted.items():
        if not path.exists():
            differences.append(f"{_name(path, root)} is missing: run `course release`")
        elif path.read_text(encoding="utf-8") != text:
            differences.append(
                f"{_name(path, root)} differs from the result of its solution. Change an exercise "
                "in solutions/, then run `course release`"
            )
    for path in _orphans(root, wanted):
        differences.append(
            f"{_name(path, root)} has no solution. Restore the solution, or remove the exercise "
            "with `course release --remove`"
        )
    return differences


def as_text(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook, version=4) + "\n"


def _wanted(root: Path) -> dict[Path, str]:
    wanted = {}
    for path in sorted((root / SOLUTIONS).glob("*/*.ipynb")):
        solution = nbformat.read(path, as_version=4)
        _demand_an_exercise(solution, _name(path, root))
        target = root / EXERCISES / path.relative_to(root / SOLUTIONS)
        wanted[target] = as_text(exercise_from(solution))
    if not wanted:
        raise NoSolutions(
            f"there are no solutions in {root / SOLUTIONS}, but exercises are made only from them: "
            "run this in a full copy of the course (nothing was changed)"
        )
    return wanted


def _orphans(root: Path, wanted: dict[Path, str]) -> list[Path]:
    return [path for path in sorted((root / EXERCISES).glob("*/*.ipynb")) if path not in wanted]


def _demand_an_exercise(notebook: NotebookNode, name: str) -> None:
    """Raise an error if a released solution would reveal an answer or could not be graded."""
    graded = 0
    for index, cell in enumerate(notebook.cells):
        marks = cell.metadata.get("nbgrader", {})
        graded += bool(marks.get("grade"))
        has_region = "### BEGIN SOLUTION" in cell.source
        if has_region and not marks.get("solution"):
            raise BadSolution(
                f"{name}, cell {index}: an answer is in a cell that is not marked as a solution. "
                "Mark it, or the answer would be handed out"
            )
        if marks.get("solution") and cell.cell_type == "code" and not has_region:
            raise BadSolution(
                f"{name}, cell {index}: a solution cell needs ### BEGIN SOLUTION and ### END "
                "SOLUTION around the answer, or its %%ranks line and signature are removed too"
            )
    if not graded:
        raise BadSolution(f"{name}: no cell is marked as a test with points, so nothing is graded")


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()
