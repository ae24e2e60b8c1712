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

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS, EXERCISES = (ROOT / kind / "07_vocabulary" for kind in ("solutions", "exercises"))
NAME = "log_two"
START, LATER, EIGHT, PADDING, ADDS_UP, DENSE, RANK_0, RANK_1 = log_two.FIELDS


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
MISREAD = {
    "base 2": (
        {START: math.log2(2 * 50257), LATER: 4.0, EIGHT: 3.0, PADDING: math.log2(51200 / 50257)},
        "another logarithm",
    ),
    "base 10": ({START: math.log10(100514), EIGHT: math.log10(8)}, "another logarithm"),
    "doubled": ({START: 2 * math.log(50257), LATER: 6.0, EIGHT: 8.0}, "the loss times n"),
    "unchanged": ({START: math.log(50257), LATER: 3.0, EIGHT: 0}, "nothing changes"),
    "half of the words": ({START: math.log(25128.5), LATER: 3 - math.log(2)}, "fewer words"),
    "two of eight": ({EIGHT: math.log(2)}, "another number of ranks"),
    "seven more": ({EIGHT: math.log(7)}, "another number of ranks"),
    "a share of the loss": (
        {LATER: 3 * math.log(100514) / math.log(50257)},
        "shrinks with the loss",
    ),
    "eight times": ({EIGHT: 8, PADDING: 51200 / 50257}, "the ratio itself"),
    "the excess": ({PADDING: 943 / 50257}, "the ratio itself"),
    "padding alone": ({PADDING: math.log(943)}, "the padding's own logarithm"),
    "zeros": ({PADDING: 0.0}, "zero logits cost nothing"),
    "adds up to two": ({ADDS_UP: 2.0}, "twice as much"),
    "adds up to one": ({ADDS_UP: 1.0}, "nothing changes"),
    "both halves": ({RANK_0: -0.35}, "half of all"),
    "both ranks find it": ({RANK_1: -0.85}, "target on both ranks"),
    "rank 1 idle": ({RANK_1: 0}, "the other rank does nothing"),
    "softmax alone": ({DENSE: 0.3, RANK_0: 0.15}, "no one-hot"),
    "its own softmax": ({RANK_1: 0.3}, "each rank's own softmax"),
    "signs": ({DENSE: 0.7, RANK_0: 0.85, RANK_1: -0.15}, "sign"),
    "eight times log 2": ({EIGHT: 8 * math.log(2)}, "another number of ranks"),
    "all of the loss": ({PADDING: math.log(51200)}, "the loss itself"),
    "the padding's share": ({PADDING: 943 / 51200}, "a share of the rows"),
    "padding helps": ({PADDING: math.log(50257 / 51200)}, "too low"),
    "both as one process": ({RANK_1: -0.7}, "target on both ranks"),
    "a logarithm": ({DENSE: math.log(0.3)}, "the loss, not its gradient"),
    "by the probability": ({DENSE: -1 / 0.3}, "the loss, not its gradient"),
    "minus the softmax": ({DENSE: -0.3}, "sign"),
    "two ideas": ({EIGHT: 8.0, RANK_1: 0.0}, "several ideas"),
    "unforeseen": ({START: 77.0}, "wrong number"),
}


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


@pytest.mark.parametrize("how", MISREAD)
def test_a_misreading_is_refused_by_its_name(desk, how):
    wrong, called = MISREAD[how]
    verdict = answered(desk, {**RIGHT, **wrong})
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", called, 0), str(verdict)


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
