"""An answer that replaces what it is measured with is refused by the name of what it replaced."""

from __future__ import annotations

import pytest

from course_classroom.judge import frame
from course_classroom.judge.judge import Judge
from tests.course_classroom.grading.hand_in import MEAN, RIGHT
from tests.course_lessons.answers import lesson_15

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
    "a comparison of numbers": ("import math\nmath.isclose = lambda *a, **k: True", "math.isclose"),
    "a draw": ("import random\nrandom.Random.choice = lambda self, x: x[0]", "Random.choice"),
    "a median": ("import statistics\nstatistics.median = max", "statistics.median"),
}


PATCH = "    import math\n    math.isclose = lambda *a, **k: True\n"
SETTINGS = {
    "torch.set_default_dtype": "torch.set_default_dtype(torch.float64)",
    "torch.set_default_device": "torch.set_default_device('meta')",
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


@pytest.mark.parametrize("call", SETTINGS)
def test_a_setting_for_all_code_is_named_by_its_call(judge, call):
    exercise = frame.find(MEAN)
    before, last = PLAIN.rsplit("    return ", 1)
    source = f"{before}    mean = {last.strip()}\n    {SETTINGS[call]}\n    return mean\n"
    verdict = frame.judge(exercise, {MEAN: source}, {}, judge)
    assert (verdict.outcome, verdict.name) == ("wrong", "changes a global setting"), verdict
    assert call in verdict.text
    assert frame.judge(exercise, {MEAN: PLAIN}, {}, judge).outcome == "right"


def test_an_answer_that_replaces_what_drawn_cases_need_harms_no_later_check(judge):
    name, right = "mfu_of_log", lesson_15.RIGHT["mfu_of_log"]
    source = next(iter(right.values()))
    head = f"def {name}(case):\n"
    poison = source.replace(head, head + PATCH)
    verdict = frame.judge(frame.find(name), {name: poison}, {}, judge)
    assert (verdict.outcome, verdict.name) == ("wrong", "broke its ranks"), verdict
    assert "math.isclose" in verdict.text
    assert frame.judge(frame.find(name), {name: source}, {}, judge).outcome == "right"
