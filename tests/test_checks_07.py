"""Lesson 07's losses by hand: answers that break, and the trials' own numbers.

Right answers and likely wrong ones stand in `tests/answers`.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_07.trial import Case, Plan
from tests.answers.lesson_07 import BASE, body


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, {name: source})


@pytest.mark.parametrize("name", BASE)
def test_what_breaks_costs_one_check(desk, name):
    for text, found in (
        ("    return 1 / 0", "raised"),
        ("    ...", ""),
        ("    raise SystemExit", "raised"),
        ("    return 'a loss'", "not a pair"),
        ("    return float('nan'), logits * float('nan')", "not finite"),
        ("    return [], {}", "no single loss"),
    ):
        verdict = judged(desk, name, body(name, text))
        if found == "not finite":  # whatever it is called, it is wrong
            assert verdict.outcome == "wrong" and "NaN" in verdict.text, str(verdict)
        else:
            assert verdict.name == found, str(verdict)
    assert judged(desk, name, BASE[name]).outcome == "right"


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
