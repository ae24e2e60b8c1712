"""The current exercises, cell by cell, in the form in which learners get them.

Submissions are compared with these exercises. Only the handout's check cells count.
"""

from __future__ import annotations

import ast
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode


@dataclass(frozen=True)
class Cell:
    """A cell of the handout that nbgrader identifies by an id."""

    id: str
    kind: str  # code or markdown
    source: str
    checksum: str
    grade: bool
    solution: bool
    points: float
    exercise: str  # the exercise of a check cell; otherwise empty


@dataclass(frozen=True)
class Handout:
    """An exercise notebook as it is handed out today."""

    lesson: str  # such as 01_collectives
    name: str  # the file's name without .ipynb
    cells: tuple[Cell, ...]

    @property
    def checks(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.grade]

    def as_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, told: dict) -> Handout:
        cells = tuple(Cell(**cell) for cell in told["cells"])
        return cls(told["lesson"], told["name"], cells)


def from_exercises(root: Path) -> list[Handout]:
    """Return the exercises in exercises/, from which a learner's copies are made."""
    import nbformat  # imported here because the judge of a submission only needs the text classes

    folder = root / "exercises"
    found = [
        from_notebook(nbformat.read(path, as_version=4), path)
        for path in sorted(folder.glob("*/*.ipynb"))
    ]
    if not found:
        raise FileNotFoundError(
            f"there are no exercises in {folder}: run this in a full copy of the course"
        )
    return found


def from_notebook(notebook: NotebookNode, path: Path) -> Handout:
    cells = tuple(_cell(cell) for cell in notebook.cells if "nbgrader" in cell.metadata)
    return Handout(path.parent.name, path.stem, cells)


def of_lesson(handouts: list[Handout], asked: str) -> list[Handout]:
    """Return the handouts of one lesson (`1`, `01` or `01_collectives`), or an empty list."""
    number = asked.zfill(2) if asked.isdigit() else asked
    return [h for h in handouts if h.lesson == asked or h.lesson.split("_")[0] == number]


def _cell(cell: NotebookNode) -> Cell:
    marks = cell.metadata.nbgrader
    grade = bool(marks.get("grade"))
    return Cell(
        id=marks["grade_id"],
        kind=cell.cell_type,
        source=cell.source,
        checksum=marks.get("checksum", ""),
        grade=grade,
        solution=bool(marks.get("solution")),
        points=float(marks.get("points", 0) or 0),
        exercise=checked_by(cell.source) if grade else "",
    )


def checked_by(source: str) -> str:
    """Return the exercise name that a check cell passes to `check`, or an empty string."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        named = isinstance(node, ast.Call) and ast.unparse(node.func) == "check" and node.args
        if named and isinstance(node.args[0], ast.Constant):
            return str(node.args[0].value)
    return ""
