"""The checks of lesson 11's functions: their solutions pass, what breaks costs one check.

The answers are in `tests/answers`; `test_checks_11_numbers.py` has the question with numbers.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from tests.answers import checked, lesson_11, lesson_11_ways

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "11_zero_3"
WRONG = {**lesson_11.WRONG, **lesson_11_ways.WRONG}
INPUTS = {"promise": "layers, group", "same_way": "x, wanted, units, group", "tied_head": "tokens"}
STRANGE = {
    "promise": "not a list of tensors",
    "same_way": "wrong shape",
    "tied_head": "not a module",
}


def cells(name: str) -> list[str]:
    """The cells of a solution up to its answer, without the magic's line."""
    every = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    sources = [c.source for c in every if c.source.startswith("%%ranks")]
    last = next(i for i, source in enumerate(sources) if f"def {name}" in source)
    return [source.split("\n", 1)[1] for source in sources[: last + 1]]


def test_the_solution_is_right(desk):
    assert checked(desk, "promise", cells("promise")).outcome == "right"


@pytest.mark.slow  # its notebook, which each run executes, says the same
@pytest.mark.parametrize("name", ["same_way", "tied_head"])
def test_the_reference_is_right(desk, name):
    assert checked(desk, name, cells(name)[-1]).outcome == "right"


@pytest.mark.parametrize("name", INPUTS)
def test_what_breaks_costs_one_check(desk, name):
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("return 'words'", STRANGE[name]),
        ("return [len]", STRANGE[name]),
    ):
        verdict = checked(desk, name, f"def {name}({INPUTS[name]}):\n    {body}\n")
        assert verdict.name == found, str(verdict)


@pytest.mark.parametrize("name", INPUTS)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(desk, name):
    some = list(WRONG[name].values())[:2]
    said = " ".join([*frame.find(name).hints, frame.find(name).when_right])
    said += " ".join(checked(desk, name, source).text for source, _ in some)
    pieces = {
        "promise": ("resize_(0)", "untyped_storage", "new_empty(0)", "scatter(", "all_gather("),
        "same_way": ('"max"', "all_reduce("),
        "tied_head": ("= tokens.weight", "head.weight =", "register_parameter"),
    }
    assert [piece for piece in pieces[name] if piece in said] == []
