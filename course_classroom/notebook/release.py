"""Exercises from solutions: the same notebooks with the answers taken out, byte for byte the same.

nbgrader's own steps do the work, without its database, so that its stock commands give the same
notebooks. What is in exercises/ is never written by hand.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_lib.files import write_whole

SOLUTIONS, EXERCISES = "solutions", "exercises"
# Where nbgrader's own generate_assignment writes. An assignment whose folder is there already it
# skips, without an entry in its database; and exercises/ is there on every clone.
RELEASED = "release"
# What stands where an answer stood. Without an error in it, so that a blank notebook runs through
# and every check says "not attempted" for itself.
STUB = "# Your answer goes here.\n..."


class BadSolution(ValueError):
    """A solution notebook that cannot become an exercise; says which cell, and what to do."""


def configuration():
    """nbgrader's configuration, for this module and for `nbgrader_config.py` alike."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.preprocessors import ClearSolutions
    from traitlets.config import Config

    from course_classroom.notebook.blanks import AddHint, ClearAnswers

    settings = Config()
    settings.CourseDirectory.source_directory = SOLUTIONS
    settings.CourseDirectory.release_directory = RELEASED
    settings.ClearSolutions.code_stub = {"python": STUB}
    steps = GenerateAssignment.preprocessors.default()
    ours = {ClearSolutions: [ClearAnswers, AddHint]}  # in the place of what takes answers out
    settings.GenerateAssignment.preprocessors = [x for s in steps for x in ours.get(s, [s])]
    return settings


class NoSolutions(FileNotFoundError):
    """There is nothing to make exercises from, so nothing is made and nothing removed."""


def exercise_from(solution: NotebookNode) -> NotebookNode:
    from nbgrader import preprocessors

    settings = configuration()
    notebook, resources = nbformat.from_dict(solution), {}
    for step in settings.GenerateAssignment.preprocessors:  # in nbgrader's order
        if step not in (preprocessors.IncludeHeaderFooter, preprocessors.SaveCells):
            notebook, resources = step(config=settings).preprocess(notebook, resources)
    return notebook


def release(root: Path, *, remove: bool = False) -> list[str]:
    """Write exercises/ from solutions/; the files that changed, were added or, where `remove`
    allows it, went away because no solution makes them any more."""
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
    """What in exercises/ is not what solutions/ gives, in words; empty when all is well."""
    differences, wanted = [], _wanted(root)
    for path, text in wanted.items():
        if not path.exists():
            differences.append(f"{_name(path, root)} is missing: run `course release`")
        elif path.read_text(encoding="utf-8") != text:
            differences.append(
                f"{_name(path, root)} differs from what its solution gives: an exercise is changed "
                "in solutions/ and made by `course release`"
            )
    for path in _orphans(root, wanted):
        differences.append(
            f"{_name(path, root)} has no solution that it could come from: bring the solution "
            "back, or let `course release --remove` take the exercise away"
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
            f"there are no solutions in {root / SOLUTIONS}, and exercises are made from them "
            "alone: run this from a full copy of the course (nothing was changed)"
        )
    return wanted


def _orphans(root: Path, wanted: dict[Path, str]) -> list[Path]:
    return [path for path in sorted((root / EXERCISES).glob("*/*.ipynb")) if path not in wanted]


def _demand_an_exercise(notebook: NotebookNode, name: str) -> None:
    """Refuse a solution whose release would give an answer away, or could not be graded."""
    graded = 0
    for index, cell in enumerate(notebook.cells):
        marks = cell.metadata.get("nbgrader", {})
        graded += bool(marks.get("grade"))
        has_region = "### BEGIN SOLUTION" in cell.source
        if has_region and not marks.get("solution"):
            raise BadSolution(
                f"{name}, cell {index}: an answer stands in a cell that is not marked as a "
                "solution; mark it as one, or the answer would be handed out"
            )
        if marks.get("solution") and cell.cell_type == "code" and not has_region:
            raise BadSolution(
                f"{name}, cell {index}: a solution cell needs ### BEGIN SOLUTION and "
                "### END SOLUTION round the answer, or its %%ranks line and signature go as well"
            )
    if not graded:
        raise BadSolution(f"{name}: no cell is marked as a test with points, so nothing is graded")


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()
