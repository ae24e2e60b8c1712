"""The checks of lesson 12 that run engines: the solutions are right, a blank is not attempted.

The answers are in `tests/answers`, and run on the judge's real ranks.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.answers import checked

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "12_offload"
NAMES = ("pick_stage", "walk_ladder")


def reference(name: str) -> str:
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    source = next(c.source for c in cells if f"def {name}" in c.source)
    return source.split("\n", 1)[1]  # without the magic's line


@pytest.mark.slow  # its notebook, which each run executes, says the same
@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_right(desk, name):
    assert checked(desk, name, reference(name)).outcome == "right"


@pytest.mark.parametrize("name", NAMES)
def test_a_blank_is_not_attempted(desk, name):
    verdict = checked(desk, name, f'def {name}(*given):\n    """Later."""\n')
    assert verdict.outcome == "not attempted"
