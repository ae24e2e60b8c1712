"""Preprocessors that turn solutions into exercises: they insert stubs, blanks for numbers and a
hint cell below each check, and remove commentary. They are nbgrader steps, so its stock commands do
the same. Lesson 01 has exercises of both kinds.
"""

from __future__ import annotations

import ast
import re

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from nbgrader.preprocessors import ClearSolutions, NbGraderPreprocessor

_REGION = re.compile(r"^### BEGIN SOLUTION\n(.*?)^### END SOLUTION$", re.DOTALL | re.MULTILINE)


COMMENTARY = "commentary"  # the tag of a cell that explains the answer


class ClearAnswers(ClearSolutions):
    """Preprocessor that turns `sent = {2: 100, 3: 133}` into `sent = {2: ..., 3: ...}` and removes
    cells with the tag `commentary`; nbgrader does the rest."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        nb, resources = super().preprocess(nb, resources)
        nb.cells = [c for c in nb.cells if COMMENTARY not in c.metadata.get("tags", [])]
        return nb, resources

    def _replace_solution_region(self, cell: NotebookNode, language: str) -> bool:
        found = _REGION.search(cell.source) if cell.cell_type == "code" else None
        blank = without_numbers(found.group(1)) if found else None
        if blank is None:
            return super()._replace_solution_region(cell, language)
        cell.source = cell.source[: found.start()] + blank + cell.source[found.end() :]
        return True


class AddHint(NbGraderPreprocessor):
    """Preprocessor that adds a cell with `hint()` below each check."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        cells = []
        for cell in nb.cells:
            cells.append(cell)
            marks = cell.metadata.get("nbgrader", {})
            if marks.get("grade") and cell.source.startswith("check("):
                name = marks["grade_id"].removesuffix("-check")
                cells.append(new_code_cell("hint()", id=f"{name}-hint"))
        nb.cells = cells
        return nb, resources


def without_numbers(answer: str) -> str | None:
    """Replace every value in assigned dictionaries with `...`; return None for other code."""
    try:
        statements = ast.parse(answer).body
    except SyntaxError:
        return None
    if not statements or not all(_fills_dictionary(one) for one in statements):
        return None
    lines = answer.rstrip("\n").encode().splitlines()
    values = [value for one in statements for value in one.value.values]
    for value in reversed(values):  # from the end, so that earlier positions stay valid
        first, last = value.lineno - 1, value.end_lineno - 1
        whole = lines[first][: value.col_offset] + b"..." + lines[last][value.end_col_offset :]
        lines[first : last + 1] = [whole]
    return b"\n".join(lines).decode()


def _fills_dictionary(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict)
