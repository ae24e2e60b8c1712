"""An answer that replaces what it is measured with is refused by the name of what it replaced."""

from __future__ import annotations

import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.judge import Judge
from tests.grading.hand_in import MEAN, RIGHT

PLAIN = RIGHT.removeprefix("%%ranks\n")
PATCHES = {
    "a call that counts nothing": ("dist.all_gather = dist.all_gather", False),
    "a call of torch": ("keep = dist.barrier\ndist.barrier = lambda *a, **k: keep(*a)", "barrier"),
    "a method of tensors": ("torch.Tensor.half = lambda self: self", "Tensor.half"),
    "a comparison": ("torch.allclose = lambda *a, **k: True", "torch.allclose"),
    "the book": (
        "import course_lib.ledger as book\nbook.ledger = lambda: None",
        "course_lib.ledger.ledger",
    ),
    "a builtin": ("import builtins\nbuiltins.round = lambda x: 3", "builtins.round"),
}


@pytest.fixture(scope="module")
def judge():
    made = Judge(idle_minutes=0)
    yield made
    made.stop()


@pytest.mark.parametrize("name", PATCHES)
def test_a_part_that_an_answer_replaced_is_named(judge, name):
    patch, replaced = PATCHES[name]
    inside = "".join(f"    {line}\n" for line in patch.splitlines())
    first = "def mean_over_ranks(x, group):\n"
    exercise = frame.find(MEAN)
    verdict = frame.judge(exercise, {MEAN: PLAIN.replace(first, first + inside)}, {}, judge)
    if replaced:
        assert (verdict.outcome, verdict.name) == ("wrong", "broke its ranks"), verdict
        assert replaced in verdict.text
    else:
        assert verdict.outcome == "right", verdict
    # The next answer meets ranks that are whole.
    assert frame.judge(exercise, {MEAN: PLAIN}, {}, judge).outcome == "right"
