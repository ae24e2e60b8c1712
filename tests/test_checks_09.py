"""The checks of lesson 09's functions: boxes and buckets, what breaks, and what hints keep back.

Right answers and likely wrong ones stand in `tests/answers`.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.lesson_09.pieces import buckets, readings, right
from course_lib.classroom.checks.lesson_09.proof import PASSED, REFUSED
from tests.answers import checked, lesson_09, lesson_09_shards

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "09_zero_1"
NOT_TRIED = {"parameters averaged", "even"}  # a box that fails on two counts, and one on none
# Of each function: its parameters, what a text in the place of a result is called.
FUNCTIONS = {
    "pieces_of": ("a, b, c", "not pieces"),
    "master_step": ("a, b, c, d, e", "no update"),
    "shard_groups": ("a, b, c", "not groups"),
    "is_sharded": ("a, b", "no verdict"),
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
    arguments, called = FUNCTIONS[name]
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("raise SystemExit", "raised"),
        ("return 'seven'", called),
    ):
        verdict = checked(desk, name, f"def {name}({arguments}):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert checked(desk, name, reference(name)).outcome == "right"


@pytest.mark.parametrize("seed", range(20))
def test_no_idea_about_pieces_is_the_right_one(seed):
    for n in (2, 3):
        for lengths in buckets(seed, n):
            every = [right(lengths, n, rank) for rank in range(n)]
            assert sum(b - a for own in every for _, a, b, _ in own) == sum(lengths)
    asked = [(c, n, r) for n in (2, 3, 7) for c in buckets(seed, n) for r in range(n)]
    for ideas in zip(*map(readings, asked), strict=True):
        assert any(sorted(p) != right(*a) for (_, p), a in zip(ideas, asked, strict=True)), ideas[0]


def test_every_box_decides_some_answer_but_two():
    answers = [lesson_09.WRONG["is_sharded"], lesson_09_shards.WRONG["is_sharded"]]
    names = {name for table in answers for _, name in table.values()}
    for kind, name in {**PASSED, **REFUSED}.items():
        assert name in names or kind in NOT_TRIED


@pytest.mark.parametrize("name", FUNCTIONS)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(name):
    said = " ".join(frame.find(name).hints) + frame.find(name).when_right
    kept_back = ("def ", "return ", "reduce_scatter(", "// n", ".float()", "shard[")
    for piece in (*kept_back, "backward()", "all_reduce("):
        assert piece not in said
