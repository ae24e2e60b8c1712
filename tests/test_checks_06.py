"""The checks of lesson 06 on real ranks: right answers pass, plausible wrong ones go by their name.

Half a block with its tokens cut, and the gradients that owe a sum. `test_checks_06_uneven.py` has
the mean over uneven pieces, `test_checks_06_numbers.py` the question with numbers.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.answers.lesson_06_half import HALF, WRONG_HALF
from tests.answers.lesson_06_pay import PAY, WRONG_PAY

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "06_sequence"
RIGHT = {"sequence_mlp": HALF, "pay_sums": PAY}


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, {name: source})


def reference(name: str) -> str:
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    source = next(c.source for c in cells if f"def {name}" in c.source)
    return source.split("\n", 1)[1]  # without the magic's line


@pytest.mark.slow  # its notebook, which each run executes, says the same
@pytest.mark.parametrize("name", RIGHT)
def test_the_reference_is_right(desk, name):
    assert judged(desk, name, reference(name)).outcome == "right"


@pytest.mark.parametrize("name", RIGHT)
def test_what_breaks_costs_one_check(desk, name):
    inputs = {"sequence_mlp": "a, b, c, d, e, f, g", "pay_sums": "a, b"}[name]
    strange = {"sequence_mlp": "wrong shape", "pay_sums": "not a dictionary"}[name]
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("return 'tokens'", strange),
        ("import os\n    os._exit(3)", "killed"),
    ):
        verdict = judged(desk, name, f"def {name}({inputs}):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert judged(desk, name, RIGHT[name]).outcome == "right"


@pytest.mark.parametrize("name", RIGHT)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(desk, name):
    wrong = {"sequence_mlp": WRONG_HALF, "pay_sums": WRONG_PAY}[name]
    some = [source for source, _ in list(wrong.values())[:3]]
    said = " ".join([*frame.find(name).hints, frame.find(name).when_right])
    said += " ".join(judged(desk, name, source).text for source in some)
    for piece in ('after="sharded"', "copy(weight", "copy(bias", "reduce_scatter(", '"q_norm'):
        assert piece not in said
