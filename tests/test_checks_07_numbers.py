"""Lesson 07's question with numbers: they are those of the mistake, carried out."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from course_lib.classroom.checks.desk import Desk
from tests.answers.lesson_07_numbers import (
    ADDS_UP,
    DENSE,
    EIGHT,
    LATER,
    PADDING,
    RANK_0,
    RANK_1,
    START,
)

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


def test_the_mistake_carried_out_gives_numbers_that_are_right():
    verdict = Desk().check(NAME, {}, {NAME: by_torch()})
    assert (verdict.outcome, verdict.points) == ("right", 3), str(verdict)
