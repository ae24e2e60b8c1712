"""The trials of lesson 07's losses have torch's numbers, and its question those of the mistake."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from course_lessons.lesson_07.trial import Case, Plan
from tests.course_lessons.answers.lesson_07_numbers import (
    ADDS_UP,
    DENSE,
    EIGHT,
    LATER,
    PADDING,
    RANK_0,
    RANK_1,
    START,
)


@pytest.mark.parametrize("kind", ["plain", "far", "low", "apart", "silent"])
@pytest.mark.parametrize("n", [2, 3])
def test_every_case_has_targets_at_the_edges_and_torch_s_own_mean(kind, n):
    case = Case(Plan(5, 12, 19, 19, kind), n)
    heard = case.spans[:-1] if kind in ("far", "silent") else case.spans
    for targets in case.targets:
        assert {word for a, z in heard for word in (a, z - 1)} <= set(targets.tolist())
    loss, gradient = case.steps[0]
    whole = case.logits(0, case.table).requires_grad_()
    want = F.cross_entropy(whole, case.targets[0])
    torch.testing.assert_close(loss, want.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(want, whole)[0])


def test_a_case_of_ignored_tokens_is_torch_s_and_nothing_at_all_is_zero():
    for label in (-100, 4):
        case = Case(Plan(6, 12, 19, 19, ignore=label, ignored="some"), 2)
        want = F.cross_entropy(case.logits(0, case.table), case.targets[0], ignore_index=label)
        assert 0 < int((case.targets[0] == label).sum()) < 12
        torch.testing.assert_close(case.steps[0][0], want)
    loss, gradient = Case(Plan(6, 12, 19, 19, ignore=-100, ignored="all"), 2).steps[0]
    assert loss == 0 and not gradient.any()


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


def test_the_mistake_carried_out_gives_numbers_that_are_right(alone):
    verdict = alone.check("log_two", {}, {"log_two": by_torch()})
    assert (verdict.outcome, verdict.points) == ("right", 3), str(verdict)
