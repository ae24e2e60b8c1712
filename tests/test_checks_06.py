"""The checks of lesson 06 on real ranks: what breaks costs one check, and no answer is given away.

`test_checks_06_numbers.py` has the question with numbers, `tests/answers` the right and the wrong.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.answers.lesson_06_half import HALF, WRONG_HALF
from tests.answers.lesson_06_loss import LOSS, WRONG_LOSS, loss
from tests.answers.lesson_06_pay import PAY, WRONG_PAY

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "06_sequence"
RIGHT = {"sequence_mlp": HALF, "pay_sums": PAY, "uneven_loss": LOSS}
# f of pieces of the table that differ in length: its backward's all-reduces disagree.
TORN = loss(("copy(table, group)", "copy(table[: len(table) - group.rank()], group)"))


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
    strange = {"sequence_mlp": "wrong shape", "pay_sums": "not a dictionary"}.get(
        name, "not a loss"
    )
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("return 'tokens'", strange),
        ("import os\n    os._exit(3)", "killed"),
    ):
        verdict = judged(desk, name, f"def {name}(*inputs):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert judged(desk, name, RIGHT[name]).outcome == "right"


def test_a_nan_is_a_wrong_loss_and_breaks_nothing(desk):
    source = "def uneven_loss(*inputs):\n    return torch.tensor(float('nan')).double()\n"
    assert judged(desk, "uneven_loss", source).name == "wrong loss"


def test_a_disagreement_in_the_backward_is_placed_there_once(desk):
    text = judged(desk, "uneven_loss", TORN).text
    assert "disagree" in text and text.count("in the backward") == 1, text
    assert "line 1" not in text


@pytest.mark.parametrize("name", RIGHT)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(desk, name):
    wrong = {"sequence_mlp": WRONG_HALF, "pay_sums": WRONG_PAY, "uneven_loss": WRONG_LOSS}[name]
    some = [source for source, _ in list(wrong.values())[:3]]
    said = " ".join([*frame.find(name).hints, frame.find(name).when_right])
    said += " ".join(judged(desk, name, source).text for source in some)
    for piece in ('after="sharded"', "copy(weight", "copy(bias", "reduce_scatter(", '"q_norm'):
        assert piece not in said
    for piece in ("copy(table", "reduce(own", "sum(sizes[", "x.shape[0]"):
        assert piece not in said
