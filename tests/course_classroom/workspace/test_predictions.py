"""A learner's copy shows no answer below a prediction; what its cells say stays the same."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from course_classroom.workspace.copying import open_up
from course_classroom.workspace.handed_out import items, version, without_answers
from course_classroom.workspace.renewing import renew

ROOT = Path(__file__).resolve().parents[3]
OTHERS = ("f_and_g(", "parameter_life(", "ring_steps(", "sliders.ring(")
LESSONS = sorted(ROOT.glob("notebooks/[0-9][0-9]_*.ipynb"))


def code_cells(data: bytes) -> list[dict]:
    return [cell for cell in json.loads(data)["cells"] if cell["cell_type"] == "code"]


def is_schematic(cell: dict) -> bool:
    lines = "".join(cell["source"]).splitlines()
    return any(line.startswith(("statement(", *OTHERS)) for line in lines)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_no_output_below_the_first_prediction_but_the_derivations_pictures(path):
    data = path.read_bytes()
    before, after = code_cells(data), code_cells(without_answers(data))
    asks = ["\npredict(" in "\n" + "".join(cell["source"]) for cell in before]
    assert any(asks), "a lesson asks for a prediction"
    first = asks.index(True)
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        stays = i <= first or is_schematic(old)
        assert new["outputs"] == (old["outputs"] if stays else [])
    text = json.dumps([cell["outputs"] for cell in after])
    assert "Measured" not in text and "By the formula" not in text
    assert version(without_answers(data)).cells == version(data).cells
    assert without_answers(without_answers(data)) == without_answers(data)


@pytest.mark.parametrize(
    "data", [b"", b"no notebook", b"[]", b'{"cells": 3}', b'{"cells": []}', b"\xff"]
)
def test_what_is_no_notebook_or_asks_nothing_stays_byte_for_byte(data):
    assert without_answers(data) == data


def test_an_exercise_and_an_appendix_stay_byte_for_byte():
    for path in [*ROOT.glob("exercises/02_*/*.ipynb"), *ROOT.glob("notebooks/appendix_[bd]_*")]:
        assert without_answers(path.read_bytes()) == path.read_bytes()


@pytest.fixture
def course(tmp_path) -> Path:
    """A course of one lesson."""
    notebooks = tmp_path / "course" / "notebooks"
    notebooks.mkdir(parents=True)
    (notebooks / LESSONS[2].name).write_bytes(LESSONS[2].read_bytes())
    return notebooks.parent


def test_a_workspace_shows_no_answer(course, tmp_path):
    lesson = course / "notebooks" / LESSONS[2].name
    work = tmp_path / "work"
    open_up(course, work)
    copy = work / "notebooks" / lesson.name
    assert copy.read_bytes() == without_answers(lesson.read_bytes()) != lesson.read_bytes()
    assert not open_up(course, work).newer
    copy.write_bytes(lesson.read_bytes())
    renew(items(course), course, work, datetime(2026, 1, 1))
    assert copy.read_bytes() == without_answers(lesson.read_bytes()), "begun again, too"
