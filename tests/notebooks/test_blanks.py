"""Blanks where answers stood: a dictionary keeps its keys, all else becomes nbgrader's stub."""

from __future__ import annotations

import ast

import pytest
from nbformat.v4 import new_markdown_cell

pytest.importorskip("nbgrader")

from course_classroom.notebook import release
from course_classroom.notebook.blanks import ClearAnswers, without_numbers

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


def cleared(cell):
    step = ClearAnswers(config=release.configuration())
    cell.metadata["nbgrader"] = {"solution": True, "grade_id": "x", "schema_version": 3}
    return step.preprocess_cell(cell, {"language": "python"}, 0)[0].source


@pytest.mark.parametrize(
    ("answer", "blank"),
    [
        ("sent = {2: 100, 3: 133}", "sent = {2: ..., 3: ...}"),
        ("a = {'x': -1}\nb = {'y': [1, 2]}", "a = {'x': ...}\nb = {'y': ...}"),
        (
            "a = {\n 'x': 1,  # MB\n 'y': 2,  # ms\n}",
            "a = {\n 'x': ...,  # MB\n 'y': ...,  # ms\n}",
        ),
        ("a = {\n 'x': (\n  1\n  + 2\n ),\n}", "a = {\n 'x': (\n  ...\n ),\n}"),
        ("a = {'α → β': 1, 'β': 22}", "a = {'α → β': ..., 'β': ...}"),
        ("a = {'x': {'deep': 1}}", "a = {'x': ...}"),
    ],
)
def test_a_dictionary_keeps_its_keys_and_loses_its_values(answer, blank):
    assert without_numbers(answer + "\n") == blank
    ast.parse(blank)


@pytest.mark.parametrize(
    "answer",
    ["x = 3", "a = {'x': 1}\nb = 2", "def f():\n    return 1", "%%ranks\na = {'x': 1}", ""],
)
def test_what_is_more_than_dictionaries_is_left_to_nbgrader(answer):
    assert without_numbers(answer) is None


def test_an_answer_in_words_is_left_to_nbgrader():
    assert "six" not in cleared(new_markdown_cell(f"{BEGIN}\na = {{'x': 'six'}}\n{END}"))
