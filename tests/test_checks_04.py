"""The function exercises of lesson 04: the reference answers are right, on the judge's ranks."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions" / "04_megatron_mlp"


def reference(name: str) -> str:
    cells = nbformat.read(SOLUTIONS / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if f"def {name}" in c.source).split("\n", 1)[1]


@pytest.mark.parametrize("name", ["fuse_gate_up", "five_to_two"])
def test_the_reference_answer_is_right(desk, name):
    verdict = desk.check(name, {name: reference(name)})
    assert (verdict.outcome, verdict.points) == ("right", frame.find(name).points), str(verdict)
