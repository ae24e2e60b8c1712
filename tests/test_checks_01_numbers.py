"""Lesson 01's questions with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.answers.lesson_01_numbers import ANSWERS, B, per_n

ROOT = Path(__file__).resolve().parent.parent
EXERCISES = ROOT / "exercises" / "01_collectives"


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def answered(desk: Desk, name: str, given: object) -> frame.Verdict:
    return desk.check(name, {}, {name: given})


def cell(folder: Path, name: str, kind: str) -> str:
    cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-{kind}")


def test_all_that_is_right_so_far_is_said(desk):
    text = answered(desk, "who_hangs", {"A": 2, "B": 2, "C": 0}).text
    assert text.startswith("Case B, rank 2: ")
    assert "Right so far: 'A' and 'C'." in text
    text = answered(desk, "who_hangs", {"A": 0, "B": 2, "C": 1}).text
    assert re.findall(r"^Case (., rank .): ", text, re.MULTILINE) == [
        "A, rank 0",
        "B, rank 2",
        "C, rank 1",
    ]
    assert "Right so far" not in text
    text = answered(desk, "ring_bytes", {**ANSWERS["ring_bytes"], 3: 1, 8: 1}).text
    assert text == "Not right: what you have for 3 and 8. The rest is right."


def test_what_fits_two_ideas_is_asked_about(desk):
    text = answered(desk, "ring_bytes", per_n(lambda n: 2 * (n - 1) * B)).text
    assert "a whole tensor in each step, or what all ranks send together" in text
    text = answered(desk, "ring_bytes", per_n(lambda n: (n - 1) * B)).text
    assert "from each to each" in text


def test_no_hint_and_no_verdict_names_the_rank_that_is_right(desk):
    found = frame.find("who_hangs")
    assert not re.search(r"rank \d", " ".join([*found.hints, found.when_right]))
    for case, right in ANSWERS["who_hangs"].items():
        for rank in {0, 1, 2} - {right}:
            text = answered(desk, "who_hangs", {**ANSWERS["who_hangs"], case: rank}).text
            assert not re.search(rf"(rank|is) {right}\b", text)


def test_nothing_is_measured_before_it_is_predicted():
    cells = nbformat.read(EXERCISES / "ring_bytes.ipynb", as_version=4).cells
    space: dict = {}
    exec(cell(EXERCISES, "ring_bytes", "answer"), space)
    tree = ast.parse(cells[-1].source)
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]
    exec(compile(tree, "the last cell", "exec"), space)  # extra_ranks is not even looked for
    assert "sent" not in space
