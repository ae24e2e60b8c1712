"""What a submitted notebook answers, and what is said of it where it is not as it was given out."""

from __future__ import annotations

import json

import nbformat
import pytest

from course_classroom.grading import handouts, intact, reading
from tests.course_classroom.grading.hand_in import (
    MEAN,
    RIGHT,
    RING,
    ROOT,
    WHO,
    WRONG,
    answered,
    blank,
    cell,
    save,
    with_cell,
)


@pytest.fixture(scope="module")
def given() -> list[handouts.Handout]:
    return intact.intact(ROOT)


@pytest.fixture
def look(given, tmp_path):
    def at(notebook, name: str = "anna") -> reading.Reading:
        return reading.read(save(notebook, tmp_path / f"{name}.ipynb"), given)

    return at


def answer_of(found: reading.Reading, name: str = MEAN) -> str:
    (check,) = found.handout.checks
    return reading.answers(found, check).get(name, "")


@pytest.mark.parametrize("asked", ["1", "01", "01_collectives"])
def test_a_lesson_is_found_by_its_number(given, asked):
    assert {h.lesson for h in handouts.of_lesson(given, asked)} == {"01_collectives"}
    assert handouts.of_lesson(given, "77") == []


def test_an_untouched_notebook_has_nothing_to_be_said(look):
    for name in (MEAN, RING, WHO):
        found = look(blank(name))
        assert (found.handout.name, found.notes) == (name, [])


def test_the_exercise_is_known_by_its_cells_whatever_the_file_is_called(look):
    assert look(blank(RING), name=MEAN).handout.name == RING


def test_a_notebook_without_ids_is_known_by_its_name(look):
    notebook = blank()
    for each in notebook.cells:
        each.metadata.pop("nbgrader", None)
    assert look(notebook, name=MEAN).handout.name == MEAN
    with pytest.raises(reading.Unreadable, match="nor its name") as told:
        look(notebook)
    assert told.value.outcome == "wrong lesson"


def test_the_last_cell_above_the_check_counts(look):
    notebook = with_cell(answered(WRONG), RIGHT, place=4)
    assert "/ group.size()" in answer_of(look(notebook))
    # Below the check it is what the learner tried afterwards.
    notebook = with_cell(answered(RIGHT), WRONG, place=99)
    assert "/ group.size()" in answer_of(look(notebook))


def test_an_answer_below_the_check_counts_where_there_is_no_other(look):
    notebook = blank()
    notebook.cells.remove(cell(notebook, f"{MEAN}-answer"))
    found = look(with_cell(notebook, RIGHT, place=99))
    assert "/ group.size()" in answer_of(found)
    assert "the answer is below the check cell" in found.notes
    assert f"the cell {MEAN}-answer is missing" in found.notes


def test_a_cell_that_lost_its_magic_is_no_answer_and_that_is_said(look):
    found = look(answered(RIGHT.replace("%%ranks\n", "")))
    assert answer_of(found) == ""
    assert "does not start with %%ranks" in found.notes[-1]


def test_a_cell_made_text_is_no_answer_and_that_is_said(look):
    notebook = answered(RIGHT)
    index = notebook.cells.index(cell(notebook, f"{MEAN}-answer"))
    marks = notebook.cells[index].metadata
    notebook.cells[index] = nbformat.v4.new_markdown_cell(RIGHT, metadata=marks)
    found = look(notebook)
    assert answer_of(found) == ""
    assert f"the cell {MEAN}-answer was changed to a markdown cell" in found.notes


def test_a_missing_check_cell_is_said_and_all_answers_count(look):
    notebook = answered(RIGHT)
    notebook.cells.remove(cell(notebook, f"{MEAN}-check"))
    found = look(notebook)
    assert found.notes == [f"the cell {MEAN}-check is missing"]
    assert "/ group.size()" in answer_of(found)


def test_an_id_that_comes_twice_belongs_to_the_last(look):
    notebook = answered(RIGHT)
    twin = nbformat.from_dict(json.loads(json.dumps(cell(notebook, f"{MEAN}-check"))))
    twin.source, twin.id = "2", "twin"
    notebook.cells.insert(1, twin)
    found = look(notebook)
    assert found.notes == []
    assert "/ group.size()" in answer_of(found)


def test_an_edited_check_cell_is_said(look):
    notebook = answered(RIGHT)
    cell(notebook, f"{MEAN}-check").source = "2"
    found = look(notebook)
    assert found.notes == [f"the check cell {MEAN}-check was edited; graded with the original"]


def test_a_previous_version_is_said_and_not_called_an_edit(look):
    notebook = answered(RIGHT)
    old = cell(notebook, f"{MEAN}-check")
    old.source, old.metadata.nbgrader.checksum = "check('mean')", "0" * 32
    found = look(notebook)
    assert found.notes == ["made from an earlier version; graded with today's check cells"]


def test_renamed_cells_are_said(look):
    notebook = answered(RIGHT)
    cell(notebook, f"{MEAN}-answer").metadata.nbgrader.grade_id = "mine"
    found = look(notebook)
    assert "cells with ids that do not belong to this exercise: mine" in found.notes
    assert "/ group.size()" in answer_of(found)


BAD = {
    "nothing": (b"", "empty"),
    "no cells": (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}', "empty"),
    "a program": (b"print(1)\n", "not a notebook"),
    "another json": (b'{"a": 1}', "not a notebook"),
    "a list": (b"[1, 2]", "not a notebook"),
    "a picture": (b"\x89PNG\r\n\x1a\n\xff\xfe", "not a notebook"),
    "a deep nest": (b'{"nbformat": 4, "cells": ' + b"[" * 200_000, "not a notebook"),
    "cells that are none": (b'{"nbformat": 4, "cells": [1, [], {"source": 3}]}', "wrong lesson"),
    "cells that are a number": (b'{"nbformat": 4, "cells": 7}', "not a notebook"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_notebook_is_told_by_its_kind(given, tmp_path, kind):
    content, outcome = BAD[kind]
    (tmp_path / "a.ipynb").write_bytes(content)
    with pytest.raises(reading.Unreadable) as told:
        reading.read(tmp_path / "a.ipynb", given)
    assert told.value.outcome == outcome
    assert len(told.value.text) < 200


def test_a_notebook_of_an_older_format_is_read(given, tmp_path):
    old = nbformat.convert(answered(RIGHT), 3)
    path = tmp_path / f"{MEAN}.ipynb"
    path.write_text(nbformat.writes(old, version=3))
    assert "/ group.size()" in answer_of(reading.read(path, given))


def test_a_file_too_large_is_not_opened(given, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_BYTES", 1000)
    path = save(answered(RIGHT), tmp_path / "a.ipynb")
    with pytest.raises(reading.Unreadable, match="not opened"):
        reading.read(path, given)
