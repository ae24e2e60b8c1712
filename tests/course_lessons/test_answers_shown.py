"""The search for answers in a learner's copy finds one wherever it stands."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest

from tests.support.answers_shown import as_lines, as_statements, shown

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
RING = "ring_all_reduce"


def answer(how: str) -> str:
    """The answer to one exercise, under another name, or as bare lines with others between."""
    cells = nbformat.read(SOLUTIONS / "01_collectives" / f"{RING}.ipynb", as_version=4).cells
    (source,) = [cell.source for cell in cells if "### BEGIN SOLUTION" in cell.source]
    if how == "as lines":
        lines = source.split("### BEGIN SOLUTION\n")[1].split("### END SOLUTION")[0]
        return "\n\n".join(f"   {line}" for line in lines.splitlines())
    body = source.removeprefix("%%ranks\n").replace(f"def {RING}", "def mine")
    return ast.unparse(ast.parse(body))


def lay(folder: Path, where: str, text: str) -> None:
    if where == "a.md":
        (folder / where).write_text(f"\n{text}\n")
        return
    cell = nbformat.v4.new_code_cell(f"%%ranks\n{text}")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), folder / "a.ipynb")


@pytest.mark.parametrize(("where", "how"), [("a.md", "as lines"), ("a cell", "as code")])
def test_an_answer_is_found_wherever_it_stands(tmp_path, where, how):
    lay(tmp_path, where, answer(how))
    assert [exercise for _, exercise in shown(tmp_path, SOLUTIONS)] == [RING]
    lay(tmp_path, where, answer(how).replace("isend", "send"))
    assert shown(tmp_path, SOLUTIONS) == []


def test_every_exercise_has_an_answer_to_look_for():
    exercises = {path.stem for path in SOLUTIONS.glob("*/*.ipynb")}
    assert {one.exercise for one in as_statements(SOLUTIONS)} == exercises
    assert len(as_lines(SOLUTIONS)) >= 55
