"""Lesson 06's question with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import math
import re
from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_06 import fits
from tests.answers.lesson_06_fits import FITS, MISREAD

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions" / "06_sequence"
EXERCISES = ROOT / "exercises" / "06_sequence"


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def answered(desk: Desk, given: object) -> frame.Verdict:
    return desk.check("which_fits", {}, {"which_fits": given})


def cell(folder: Path, name: str, kind: str) -> str:
    cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-{kind}")


def written(folder: Path) -> dict:
    """What the notebook's answer cell leaves in the variable."""
    space: dict = {}
    exec(cell(folder, "which_fits", "answer"), space)
    return space["which_fits"]


def test_the_numbers_of_the_solution_are_right(desk):
    verdict = answered(desk, written(SOLUTIONS))
    assert (verdict.outcome, verdict.points) == ("right", 3), str(verdict)
    assert answered(desk, FITS).outcome == "right"
    tensors = {k: torch.tensor(v, dtype=torch.float64) for k, v in FITS.items()}
    assert answered(desk, tensors).outcome == "right"


def test_the_numbers_of_the_exercise_are_blank(desk):
    handed_out = written(EXERCISES)
    assert set(handed_out.values()) == {...}
    assert tuple(handed_out) == frame.find("which_fits").fields == tuple(FITS)
    assert answered(desk, handed_out).outcome == "not attempted"


@pytest.mark.parametrize("value", ["0.5 GB", math.nan, torch.ones(3), True], ids=str)
def test_what_is_no_number_is_told_so(desk, value):
    assert answered(desk, {**FITS, "kept, X kept": value}).name == "not a number"


def test_nothing_kept_is_an_answer_that_is_wrong_and_breaks_nothing(desk):
    zeros = dict.fromkeys(FITS, 0)
    assert answered(desk, zeros).outcome == "wrong"


def test_every_idea_goes_by_its_own_name():
    assert len({mistake.name for mistake in fits.MISTAKES}) == len(fits.MISTAKES)
    assert {mistake.name for mistake in fits.MISTAKES} <= {called for _, called in MISREAD.values()}


def spellings(value: float) -> set[str]:
    """How somebody might write the number, in several units, with two digits or more."""
    found = set()
    for unit in (1e-3, 1, 1e3):
        scaled = value / unit
        found |= {f"{scaled:.3g}", f"{scaled:.4g}", f"{scaled:,.0f}", f"{scaled:.0f}"}
    return {text for text in found if len(re.sub(r"\D", "", text)) > 1}


def test_no_hint_and_no_verdict_holds_a_right_number(desk):
    one = frame.find("which_fits")
    said = [*one.hints, one.when_right, one.title]
    said += [answered(desk, given).text for given, _ in MISREAD.values()]
    words = set(re.findall(r"(?<![\w.])\d[\d.,]*\d", " ".join(said)))
    first = [v for k, v in FITS.items() if "seq" not in k]
    assert not words & set().union(*map(spellings, first))
