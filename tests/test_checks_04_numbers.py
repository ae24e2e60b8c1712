"""Lesson 04's questions with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_04 import pays
from tests.answers.lesson_04_numbers import NUMBERS as ANSWERS
from tests.answers.lesson_04_numbers import WRONG

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions" / "04_megatron_mlp"
EXERCISES = ROOT / "exercises" / "04_megatron_mlp"


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def answered(desk: Desk, name: str, given: object) -> frame.Verdict:
    return desk.check(name, {}, {name: given})


def cell(folder: Path, name: str, kind: str) -> str:
    cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-{kind}")


def numbers(folder: Path, name: str) -> object:
    """What the notebook's answer cell leaves in the variable."""
    space: dict = {}
    exec(cell(folder, name, "answer"), space)
    return space[name]


@pytest.mark.parametrize("name", ANSWERS)
def test_the_numbers_of_the_solution_are_right(desk, name):
    verdict = answered(desk, name, numbers(SOLUTIONS, name))
    assert (verdict.outcome, verdict.points) == ("right", frame.find(name).points), str(verdict)
    assert answered(desk, name, ANSWERS[name]).outcome == "right"
    tensors = {k: torch.tensor(v, dtype=torch.float64) for k, v in ANSWERS[name].items()}
    assert answered(desk, name, tensors).outcome == "right"


@pytest.mark.parametrize("name", ANSWERS)
def test_the_numbers_of_the_exercise_are_blank(desk, name):
    handed_out = numbers(EXERCISES, name)
    assert set(handed_out.values()) == {...}
    assert tuple(handed_out) == frame.find(name).fields == tuple(ANSWERS[name])
    assert answered(desk, name, handed_out).outcome == "not attempted"


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("value", ["0.5 ms", math.nan, torch.ones(3), True], ids=str)
def test_what_is_no_number_is_told_so(desk, name, value):
    given = {**ANSWERS[name], list(ANSWERS[name])[1]: value}
    assert answered(desk, name, given).name == "not a number"


@pytest.mark.parametrize(
    ("entry", "counts"), [(entry, counts) for entry, ways in pays.IDEAS.items() for counts in ways]
)
def test_every_idea_about_time_goes_by_its_own_name(desk, entry, counts):
    name, text = pays.SAYS.of(entry)
    verdict = answered(desk, "tp_pays", replace(pays.RIGHT, **counts).answers())
    assert (verdict.outcome, verdict.name) == ("wrong", name)
    assert text in verdict.text


def spellings(value: float) -> set[str]:
    """How somebody might write the number, in several units, with two digits or more."""
    found = set()
    for unit in (1e-3, 1, 1e3):
        scaled = value / unit
        found |= {f"{scaled:.3g}", f"{scaled:.4g}", f"{scaled:,.0f}", f"{scaled:.0f}"}
    return {text for text in found if len(re.sub(r"\D", "", text)) > 1}


@pytest.mark.parametrize("name", ANSWERS)
def test_no_hint_and_no_verdict_holds_a_right_number(desk, name):
    said = [*frame.find(name).hints, frame.find(name).when_right, frame.find(name).title]
    said += [answered(desk, name, given).text for given, _ in WRONG[name].values()]
    words = set(re.findall(r"\d[\d.,]*\d", " ".join(said)))
    values = [v for v in ANSWERS[name].values() if abs(v) not in (0, 1)]
    assert not words & set().union(*map(spellings, values))
