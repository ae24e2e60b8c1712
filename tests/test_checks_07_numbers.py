"""Lesson 07's question with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import math
import re
from pathlib import Path

import nbformat
import pytest
import torch
import torch.nn.functional as F

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_07 import log_two
from tests.answers.lesson_07_numbers import (
    ADDS_UP,
    DENSE,
    EIGHT,
    LATER,
    MISREAD,
    PADDING,
    RANK_0,
    RANK_1,
    START,
)

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS, EXERCISES = (ROOT / kind / "07_vocabulary" for kind in ("solutions", "exercises"))
NAME = "log_two"


def by_torch() -> dict[str, float]:
    """The eight numbers from logits that are made for them, with the mistake carried out."""
    v, rows = 50_257, 51_200
    even, target = torch.zeros(1, v, dtype=torch.float64), torch.tensor([7])

    def loss(logits: torch.Tensor, n: int) -> torch.Tensor:
        """n ranks that each count all of the logits; the first of them finds the target."""
        return torch.logsumexp(logits.repeat(1, n), -1)[0] - logits[0, 7]

    later = even[:, :20].clone()
    later[0, 7] = math.log(19 / (math.exp(3.0) - 1))  # a loss of 3
    apart = even[:, :20].clone()
    apart[0, 7] = math.log(0.3 / 0.7 * 19)  # a probability of 0.3
    leaves = [apart.clone().requires_grad_() for _ in range(2)]
    (torch.logsumexp(torch.cat(leaves, -1), -1)[0] - leaves[0][0, 7]).backward()
    alone = apart.clone().requires_grad_()
    F.cross_entropy(alone, target).backward()
    padded = F.cross_entropy(torch.zeros(1, rows, dtype=torch.float64), target)
    return {
        START: float(loss(even, 2)),
        LATER: float(loss(later, 2)),
        EIGHT: float(loss(even, 8) - F.cross_entropy(even, target)),
        PADDING: float(padded - F.cross_entropy(even, target)),
        ADDS_UP: float(leaves[1].grad.sum()),
        DENSE: float(alone.grad[0, 7]),
        RANK_0: float(leaves[0].grad[0, 7]),
        RANK_1: float(leaves[1].grad[0, 7]),
    }


RIGHT = by_torch()


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def answered(desk: Desk, given: object) -> frame.Verdict:
    return desk.check(NAME, {}, {NAME: given})


def numbers(folder: Path) -> dict:
    """What the notebook's answer cell leaves in the variable."""
    space: dict = {}
    cells = nbformat.read(folder / f"{NAME}.ipynb", as_version=4).cells
    exec(next(c.source for c in cells if c.id == f"{NAME}-answer"), space)
    return space[NAME]


def test_the_mistake_carried_out_gives_the_numbers_of_the_solution(desk):
    for given in (numbers(SOLUTIONS), RIGHT):
        verdict = answered(desk, given)
        assert (verdict.outcome, verdict.points) == ("right", 3), str(verdict)


def test_the_numbers_of_the_exercise_are_blank(desk):
    handed_out = numbers(EXERCISES)
    assert set(handed_out.values()) == {...} and tuple(handed_out) == log_two.FIELDS
    assert answered(desk, handed_out).outcome == "not attempted"


def test_every_idea_is_met_by_a_misreading():
    assert {m.name for m in log_two.MISTAKES} <= {called for _, called in MISREAD.values()}


@pytest.mark.parametrize("value", ["0.5", math.nan, torch.ones(3), True], ids=str)
def test_what_is_no_number_is_told_so(desk, value):
    assert answered(desk, {**RIGHT, EIGHT: value}).name == "not a number"


def test_no_hint_and_no_verdict_holds_a_right_number(desk):
    exercise = frame.find(NAME)
    said = [*exercise.hints, exercise.when_right]
    said += [answered(desk, {**RIGHT, **wrong}).text for wrong, _ in MISREAD.values()]
    words = set(re.findall(r"\d[\d.,]*\d", " ".join(said)))
    right = {f"{abs(v):.{digits}f}" for v in RIGHT.values() for digits in (1, 2, 3, 4)}
    assert not words & right
