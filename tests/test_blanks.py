"""Blanks where answers stood: a dictionary keeps its keys, all else becomes nbgrader's stub."""

from __future__ import annotations

import ast

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

pytest.importorskip("nbgrader")

from course_lib.classroom import release
from course_lib.classroom.blanks import ClearAnswers, without_numbers

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


def test_what_stands_round_the_answer_stays():
    cell = new_code_cell(f"alpha = 3  # given\n\n{BEGIN}\na = {{'x': alpha * 2}}\n{END}\nprint(a)")
    assert cleared(cell) == "alpha = 3  # given\n\na = {'x': ...}\nprint(a)"


def test_an_answer_in_code_becomes_the_stub():
    cell = new_code_cell(f"def f():\n    {BEGIN}\n    a = {{'x': 1}}\n    return a\n    {END}")
    assert cleared(cell) == "def f():\n    # Your answer goes here.\n    ..."


def test_an_answer_in_words_is_left_to_nbgrader():
    assert "six" not in cleared(new_markdown_cell(f"{BEGIN}\na = {{'x': 'six'}}\n{END}"))


def test_what_explains_the_answer_is_not_handed_out():
    cells = [
        new_markdown_cell("why so"),
        new_markdown_cell("what is asked"),
        new_code_cell("x = 1"),
    ]
    cells[0].metadata["tags"] = ["commentary"]
    step = ClearAnswers(config=release.configuration())
    handed_out, _ = step.preprocess(new_notebook(cells=cells), {})
    assert [cell.source for cell in handed_out.cells] == ["what is asked", "x = 1"]
