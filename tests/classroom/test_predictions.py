"""A learner's copy folds what stands below a prediction; what its cells say stays the same."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from course_lib.classroom.workspace.copying import open_up
from course_lib.classroom.workspace.handed_out import items, version
from course_lib.classroom.workspace.predictions import folded
from course_lib.classroom.workspace.renewing import renew

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted(ROOT.glob("notebooks/[0-9][0-9]_*.ipynb"))


def code_cells(data: bytes) -> list[dict]:
    return [cell for cell in json.loads(data)["cells"] if cell["cell_type"] == "code"]


def hidden(cell: dict) -> bool:
    return cell["metadata"].get("jupyter", {}).get("outputs_hidden", False)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_all_outputs_below_the_first_prediction_are_folded_and_none_above(path):
    data = path.read_bytes()
    cells = code_cells(folded(data))
    asks = ["\npredict(" in "\n" + "".join(cell["source"]) for cell in cells]
    assert any(asks), "a lesson asks for a prediction"
    first = asks.index(True)
    assert [hidden(cell) for cell in cells] == [
        i > first and bool(cell["outputs"]) for i, cell in enumerate(cells)
    ]
    assert version(folded(data)).cells == version(data).cells
    assert [cell["outputs"] for cell in cells] == [cell["outputs"] for cell in code_cells(data)]
    assert folded(folded(data)) == folded(data)


@pytest.mark.parametrize(
    "data", [b"", b"no notebook", b"[]", b'{"cells": 3}', b'{"cells": []}', b"\xff"]
)
def test_what_is_no_notebook_or_asks_nothing_stays_byte_for_byte(data):
    assert folded(data) == data


def test_an_exercise_and_an_appendix_stay_byte_for_byte():
    for path in [*ROOT.glob("exercises/02_*/*.ipynb"), *ROOT.glob("notebooks/appendix_[bd]_*")]:
        assert folded(path.read_bytes()) == path.read_bytes()


@pytest.fixture
def course(tmp_path) -> Path:
    """A course of one lesson."""
    notebooks = tmp_path / "course" / "notebooks"
    notebooks.mkdir(parents=True)
    (notebooks / LESSONS[2].name).write_bytes(LESSONS[2].read_bytes())
    return notebooks.parent


def test_a_workspace_has_them_folded(course, tmp_path):
    lesson = course / "notebooks" / LESSONS[2].name
    open_up(course, tmp_path / "work")
    copy = (tmp_path / "work" / "notebooks" / lesson.name).read_bytes()
    assert copy == folded(lesson.read_bytes()) != lesson.read_bytes()
    assert not open_up(course, tmp_path / "work").newer


def test_a_lesson_that_is_begun_again_has_them_folded(course, tmp_path):
    work = tmp_path / "work"
    open_up(course, work)
    copy = work / "notebooks" / LESSONS[2].name
    copy.write_bytes(LESSONS[2].read_bytes())
    renew(items(course), course, work, datetime(2026, 1, 1))
    assert copy.read_bytes() == folded(LESSONS[2].read_bytes())
