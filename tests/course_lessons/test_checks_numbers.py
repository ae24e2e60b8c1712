"""What is said of an answer: misreadings one by one, in words that do not give the answer away."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from course_classroom.judge import frame
from course_lessons.lesson_04 import tp_pays as pays
from tests.course_lessons.answers import checked, lesson_00
from tests.course_lessons.answers.lesson_01_numbers import ANSWERS, B, per_n
from tests.course_lessons.answers.lesson_10_numbers import NUMBERS as OF_TEN

EXERCISES = Path(__file__).resolve().parents[2] / "exercises" / "01_collectives"


def test_several_ideas_are_told_one_by_one(alone):
    text = checked(alone, "who_knows", {**lesson_00.WHO, "c": 3, "e": 1}).text
    assert "'c': A cell without `%%ranks`" in text
    assert "'e': `%%ranks 1-2` includes both ends" in text


def test_a_group_of_two_is_not_called_two_ranks(desk):
    text = checked(
        desk, "mean_over_ranks", lesson_00.WRONG["mean_over_ranks"]["the notebook's world"][0]
    ).text
    assert (
        "Your function fails on a group of 2 out of 3 ranks. It uses the notebook's `world`" in text
    )
    assert "it is the wrong number." in text


def cell(folder: Path, name: str, kind: str) -> str:
    cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-{kind}")


def test_all_that_is_right_so_far_is_said(alone):
    text = checked(alone, "who_hangs", {"A": 2, "B": 2, "C": 0}).text
    assert text.startswith("Case B, rank 2: ")
    assert "Right so far: 'A' and 'C'." in text
    text = checked(alone, "who_hangs", {"A": 0, "B": 2, "C": 1}).text
    assert re.findall(r"^Case (., rank .): ", text, re.MULTILINE) == [
        "A, rank 0",
        "B, rank 2",
        "C, rank 1",
    ]
    assert "Right so far" not in text
    text = checked(alone, "ring_bytes", {**ANSWERS["ring_bytes"], 3: 1, 8: 1}).text
    assert text == "Your value of 3 and 8 is wrong. The other values are correct."


def test_what_fits_two_ideas_is_asked_about(alone):
    text = checked(alone, "ring_bytes", per_n(lambda n: 2 * (n - 1) * B)).text
    assert "either a full tensor in each step or the bytes of all ranks together" in text
    text = checked(alone, "ring_bytes", per_n(lambda n: (n - 1) * B)).text
    assert "as if each rank sent its tensor to every other" in text


def test_no_hint_and_no_verdict_names_the_rank_that_is_right(alone):
    found = frame.find("who_hangs")
    assert not re.search(r"rank \d", " ".join([*found.hints, found.when_right]))
    for case, right in ANSWERS["who_hangs"].items():
        for rank in {0, 1, 2} - {right}:
            text = checked(alone, "who_hangs", {**ANSWERS["who_hangs"], case: rank}).text
            assert not re.search(rf"(rank|is) {right}\b", text)


def test_nothing_is_measured_before_it_is_predicted():
    cells = nbformat.read(EXERCISES / "ring_bytes.ipynb", as_version=4).cells
    space: dict = {}
    exec(cell(EXERCISES, "ring_bytes", "answer"), space)
    tree = ast.parse(cells[-1].source)
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]
    exec(compile(tree, "the last cell", "exec"), space)  # extra_ranks is not even looked for
    assert "sent" not in space


@pytest.mark.parametrize(
    ("entry", "counts"), [(entry, counts) for entry, ways in pays.IDEAS.items() for counts in ways]
)
def test_every_idea_about_time_goes_by_its_own_name(alone, entry, counts):
    name, text = pays.SAYS.of(entry)
    verdict = checked(alone, "tp_pays", replace(pays.RIGHT, **counts).answers())
    assert (verdict.outcome, verdict.name) == ("wrong", name)
    assert text in verdict.text


def test_each_question_about_fp16_is_answered_in_its_own_words(alone):
    """What is said about one of the nine does not speak of another."""
    values = {"a": 64, "f": 2048, "g": 2**17}
    lines = checked(alone, "where_to_divide", {**OF_TEN, **values}).text.splitlines()
    assert [line[:4] for line in lines] == ["'a':", "'f':", "'g':"]
    assert "number of ranks" in lines[0]
    assert "scale" in lines[1] and "all 64" in lines[1].lower()
    assert "scale" in lines[2] and "the largest gradient itself" in lines[2]
