"""Comparison of exercises/ with the checks, before anything is graded.

The checks define the exercises of a lesson and their points; nbgrader's checksums show whether a
cell has changed since release. solutions/ is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from course_classroom.grading.handouts import Handout, from_notebook

if TYPE_CHECKING:
    from nbformat import NotebookNode

EXERCISES = "exercises"
MOST_NAMED = 3  # faults that are listed; the others are counted


class Unfit(ValueError):
    """An error that lists the faults in exercises/ and how to restore the folder."""

    def __init__(self, folder: Path, faults: Sequence[str]):
        more = len(faults) - MOST_NAMED
        named = "; ".join(faults[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
        super().__init__(
            f"{folder} differs from its release: {named}. Restore it with `git restore "
            f"{EXERCISES}`, with `course release` if you have solutions/, or from a new hand-out"
        )


def intact(root: Path) -> list[Handout]:
    """Return every exercise below `root` if all cells are as released; otherwise raise Unfit."""
    found, faults = [], []
    for path in sorted((root / EXERCISES).glob("*/*.ipynb")):
        name = path.relative_to(root / EXERCISES).as_posix()
        try:
            handout, edited = _read(path)
        except OSError as error:
            faults.append(f"{name} cannot be read ({error.strerror})")
        except Exception:  # any error of the reader on a damaged file
            faults.append(f"{name} is no longer an exercise notebook")
        else:
            found.append(handout)
            faults += [f"{name}, cell {cell}, was changed" for cell in edited]
    faults += _against_the_checks(found) if found else ["there are no exercises in it"]
    if faults:
        raise Unfit(root / EXERCISES, faults)
    return found


def _read(path: Path) -> tuple[Handout, list[str]]:
    """Return an exercise, and its cells whose checksum does not match their text."""
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
    """Yield the differences in exercises and points between the check cells and the checks."""
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
            yield f"{name} gives {cell.points:g} points, but its check gives {exercise.points}"
