"""The checks of lesson 14's exercises: what breaks, and what is said.

Every answer here runs on the judge's real ranks.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from tests.answers import lesson_14, lesson_14_atomic, lesson_14_ranks, lesson_14_stock

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "14_checkpoints_and_inference"
PARTS = (lesson_14_ranks, lesson_14_stock, lesson_14_atomic, lesson_14)
RIGHT = {name: sources for part in PARTS for name, sources in part.RIGHT.items()}
WRONG = {name: wrong for part in PARTS for name, wrong in part.WRONG.items()}


def reference(name: str) -> str:
    """The answer cell of the solution, without the magic's line."""
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-answer").split("\n", 1)[1]


@pytest.mark.slow  # its notebook, which each run executes, says the same
@pytest.mark.parametrize("name", RIGHT)
def test_the_reference_is_right(desk, name):
    assert desk.check(name, {name: reference(name)}).outcome == "right"


@pytest.mark.parametrize("name", RIGHT)
def test_a_blank_is_not_attempted(desk, name):
    verdict = desk.check(name, {name: f'def {name}(*given):\n    """Later."""\n'})
    assert verdict.outcome == "not attempted"


@pytest.mark.parametrize("name", RIGHT)
def test_what_breaks_costs_one_check(desk, name):
    verdict = desk.check(name, {name: f"def {name}(*given):\n    return 1 / 0\n"})
    assert verdict.name in ("raised", "stopped by an error"), str(verdict)
    assert desk.check(name, {name: next(iter(RIGHT[name].values()))}).outcome == "right"


@pytest.mark.parametrize("name", RIGHT)
def test_a_mistake_has_a_name_of_its_own(name):
    assert len({called for _, called in WRONG[name].values()}) >= 8


HELD_BACK = {
    "from_old_ranks": ("divmod", "old.read(", "old.world *", "torch.zeros("),
    "take_stock": (".clone()", "setdefault", "numel() == 0"),
    "streamed_speed": ("(n - 1) / n", "(N - 1) / N *", "max(", "ceil("),
    "generate_together": ('"max"', "all_reduce(", "if not done"),
    "atomic_save": ("disk.rename(", "disk.sync(", 'sync(".")', "dist.barrier("),
}


@pytest.mark.parametrize("name", HELD_BACK)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(desk, name):
    said = " ".join([*frame.find(name).hints, frame.find(name).when_right])
    for source, _ in list(WRONG[name].values())[:3]:
        said += desk.check(name, {name: source}).text
    for piece in HELD_BACK[name]:
        assert piece not in said
