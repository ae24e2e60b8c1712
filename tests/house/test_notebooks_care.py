"""What `make notebooks` does to a notebook: executed whole or left alone, no trace of the run.

Tiny notebooks without ranks stand in for the lessons.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_classroom.notebook.notebooks import NotebookFailed, normalise, refresh


def noisy() -> nbformat.NotebookNode:
    """What an editor leaves behind."""
    cell = new_code_cell("1 + 1", execution_count=7)
    cell.metadata = nbformat.from_dict(
        {
            "tags": ["nbval-ignore-output"],
            "execution": {"iopub.status.busy": "2026-01-01T00:00:00Z"},
            "collapsed": False,
        }
    )
    data = {"text/plain": "2", "application/vnd.jupyter.widget-view+json": {"model_id": "x"}}
    result = new_output("execute_result", data, execution_count=7)
    result.metadata = nbformat.from_dict({"text/plain": {"alt": "two"}, "engine": 3})
    cell.outputs = [
        new_output("stream", name="stdout", text="one\n"),
        new_output("stream", name="stdout", text="two\n"),
        new_output("stream", name="stderr", text="careful\n"),
        result,
    ]
    twin = new_markdown_cell("text", id=cell.id)
    made = new_notebook()
    made.cells = [
        cell,
        twin,
        new_markdown_cell("text"),
    ]  # set, not passed: a doubled id is the case
    made.metadata = nbformat.from_dict({"kernelspec": {"name": "my-env"}, "vscode": {"x": 1}})
    return made


def test_normalise_keeps_what_matters() -> None:
    made = normalise(noisy())
    cell = made.cells[0]
    assert made.metadata.kernelspec.name == "python3"
    assert set(made.metadata) == {"kernelspec", "language_info"}
    assert cell.metadata == {"tags": ["nbval-ignore-output"]}
    assert [output.get("text") for output in cell.outputs] == ["one\ntwo\n", "careful\n", None]
    assert cell.outputs[2].data == {"text/plain": "2"}
    assert cell.outputs[2].metadata == {"text/plain": {"alt": "two"}}


def test_ids_are_never_shared_and_the_same_each_time() -> None:
    made = normalise(noisy())
    ids = [cell.id for cell in made.cells]
    assert len(set(ids)) == 3
    text = nbformat.writes(made)
    assert nbformat.writes(normalise(nbformat.reads(text, as_version=4))) == text
    assert [cell.id for cell in normalise(noisy()).cells] == ids


def test_a_section_is_found_by_its_heading_whatever_else_it_says() -> None:
    sections = ["# 02 · One `product`, two cuts\nfirst", "text\n\n## *Why* so?\nmore", "## 再"]
    made = new_notebook(cells=[new_markdown_cell(text) for text in [*sections, "## Why so?"]])
    ids = [cell.id for cell in normalise(made).cells]
    assert ids[:2] == ["02-one-product-two-cuts", "why-so"] and ids[3] == "why-so-2"
    assert ids[2] and ids[2] not in ("", "why-so")
    made.cells[0].source += " and another sentence"
    made.cells.append(new_code_cell("# no heading, a comment"))
    assert [cell.id for cell in normalise(made).cells][:4] == ids


@pytest.fixture
def lesson(tmp_path: Path) -> Path:
    path = tmp_path / "01_lesson.ipynb"
    cells = [new_code_cell("x = 6 * 7"), new_code_cell("print(x)")]
    path.write_text(nbformat.writes(new_notebook(cells=cells)))
    return path


def test_executing_again_changes_no_byte(lesson: Path) -> None:
    refresh([lesson], world=2)
    once = lesson.read_text()
    assert nbformat.reads(once, as_version=4).cells[1].outputs[0].text == "42\n"
    refresh([lesson], world=2)
    assert lesson.read_text() == once
    assert list(lesson.parent.iterdir()) == [lesson], "nothing is left beside it"


def test_a_notebook_that_fails_stays_as_it_was(lesson: Path) -> None:
    broken = nbformat.read(lesson, as_version=4)
    broken.cells.append(new_code_cell("raise ValueError('the ranks disagree')"))
    lesson.write_text(nbformat.writes(broken))
    before = lesson.read_bytes()
    with pytest.raises(NotebookFailed, match="ValueError: the ranks disagree"):
        refresh([lesson], world=2)
    assert lesson.read_bytes() == before
