"""The checks of lesson 10's functions: what breaks costs one check, and hints keep answers back.

Right answers and likely wrong ones stand in `tests/answers`.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from tests.answers import checked

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "10_zero_2"
# Of each function: its parameters, and what a wrong kind of result is called.
FUNCTIONS = {
    "reduce_early": ("a, b, c, d", {"'shards'": "no backward"}),
    "shard_of_all": ("a, b, c", {"'shards'": "not a pair"}),
    "agreed_step": (
        "a, b, c, d, e",
        {"'stepped', 1.0": "not a pair", "True, float('nan')": "no step"},
    ),
}


def reference(name: str) -> str:
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    source = next(c.source for c in cells if f"def {name}" in c.source)
    return source.split("\n", 1)[1]  # without the magic's line


@pytest.mark.slow  # its notebook, which each run executes, says the same
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_reference_is_right(desk, name):
    verdict = checked(desk, name, reference(name))
    assert (verdict.outcome, verdict.points) == ("right", frame.find(name).points)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_breaks_costs_one_check(desk, name):
    arguments, results = FUNCTIONS[name]
    broken = {"return 1 / 0": "raised", "...": "", "raise SystemExit": "raised"}
    broken |= {f"return {result}": called for result, called in results.items()}
    for body, called in broken.items():
        verdict = checked(desk, name, f"def {name}({arguments}):\n    {body}\n")
        assert verdict.name == called, str(verdict)
    assert checked(desk, name, reference(name)).outcome == "right"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(name):
    said = " ".join(frame.find(name).hints) + frame.find(name).when_right
    kept_back = ("def ", "torch.cat", "return ", "all_reduce(", "reduce_scatter(", "/= scale")
    for piece in (*kept_back, "optimizer.step()"):
        assert piece not in said
