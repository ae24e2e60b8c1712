"""exercises/ held against what the checks know, before anybody is graded by it.

The checks say which exercises a lesson has and what each is worth, nbgrader's checksums whether a
cell is as it was released. solutions/ is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from course_classroom.grading.handouts import Handout, from_notebook

if TYPE_CHECKING:
    from nbformat import NotebookNode

EXERCISES = "exercises"
MOST_NAMED = 3  # faults that are named; of the others, how many there are


class Unfit(ValueError):
    """What is wrong with exercises/, and how it is brought back."""

    def __init__(self, folder: Path, faults: Sequence[str]):
        more = len(faults) - MOST_NAMED
        named = "; ".join(faults[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
        super().__init__(
            f"{folder} is not as it was released: {named}. Bring it back with `git restore "
            f"{EXERCISES}`, or with `course release` where solutions/ is, or from a new hand-out"
        )


def intact(root: Path) -> list[Handout]:
    """Every exercise below `root`, each cell as it was released; or Unfit."""
    found, faults = [], []
    for path in sorted((root / EXERCISES).glob("*/*.ipynb")):
        name = path.relative_to(root / EXERCISES).as_posix()
        try:
            handout, edited = _read(path)
        except OSError as error:
            faults.append(f"{name} cannot be read ({error.strerror})")
        except Exception:  # whatever damage makes of the reader
            faults.append(f"{name} is not an exercise's notebook any more")
        else:
            found.append(handout)
            faults += [f"{name}, cell {cell}, was changed" for cell in edited]
    faults += _against_the_checks(found) if found else ["there are no exercises in it"]
    if faults:
        raise Unfit(root / EXERCISES, faults)
    return found


def _read(path: Path) -> tuple[Handout, list[str]]:
    """An exercise, and the cells in it whose checksum is not that of their text."""
    import nbformat
    from nbgrader.utils import compute_checksum

    notebook: NotebookNode = nbformat.read(path, as_version=4)
    marked = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    edited = [
        str(cell.metadata.nbgrader.grade_id)
        for cell in marked
        if cell.metadata.nbgrader.get("checksum") != compute_checksum(cell)
    ]
    return from_notebook(notebook, path), edited


def _against_the_checks(found: Sequence[Handout]) -> Iterator[str]:
    """Where the check cells and their points are not those that the checks know."""
    from course_classroom.judge import frame

    known = {(lesson, one.name): one for lesson, ones in frame.lessons().items() for one in ones}
    for (lesson, name), exercise in known.items():
        cells = [(h, cell) for h in found for cell in h.checks if cell.exercise == name]
        if len(cells) != 1:
            how = "is missing" if not cells else f"has {len(cells)} check cells"
            yield f"{name} of lesson {lesson} ({exercise.points} points) {how}"
            continue
        handout, cell = cells[0]
        if (handout.lesson.split("_")[0], handout.name) != (lesson, name):
            yield f"{name} of lesson {lesson} is checked in {handout.lesson}/{handout.name}.ipynb"
        if cell.points != exercise.points:
            yield f"{name} gives {cell.points:g} points, and its check {exercise.points}"
