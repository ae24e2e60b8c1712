"""The functions of lesson 02: the reference is accepted, what stops costs one check.

Every answer here runs on the judge's real ranks, three of them and a group of two; so do the layers
that the lesson asks about.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.lesson_02 import mystery
from tests.answers.lesson_02 import RIGHT

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions" / "02_one_product"
FUNCTIONS = ("cut_gradients", "row_step", "sharded_init")
EXERCISES = ROOT / "exercises" / "02_one_product"


def cell(folder: Path, name: str) -> str:
    cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-answer").split("\n", 1)[1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_reference_is_right(desk, name):
    verdict = desk.check(name, {name: cell(SOLUTIONS, name)})
    assert (verdict.outcome, verdict.points) == ("right", frame.find(name).points), str(verdict)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_blank_function_is_not_attempted(desk, name):
    verdict = desk.check(name, {name: cell(EXERCISES, name)})
    assert (verdict.outcome, verdict.points) == ("not attempted", 0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_answer_that_stops_costs_one_check(desk, name):
    head = RIGHT[name]["plain"][: RIGHT[name]["plain"].index("):\n") + 3]
    stops = {
        "raises": ("    if group.rank() == 1:\n        raise KeyError('no')\n", "raised"),
        "one leaves": ("    if group.rank():\n        dist.barrier(group)\n", "deadlock"),
        "a number": ("    return 3\n", "not these tensors"),
        "strings": ("    return ('a', 'b', 'c')[: 3]\n", "not these tensors"),
    }
    for body, called in stops.values():
        verdict = desk.check(name, {name: head + body})
        assert (verdict.outcome, verdict.name) == ("wrong", called), str(verdict)


def test_neither_a_hint_nor_a_verdict_gives_the_answer_away():
    pieces = ("dy @", "x.T", ".sum(0)", ".clone()", "nn.Linear(h", "+ bias)", "dy - ")
    for name in FUNCTIONS:
        found = frame.find(name)
        said = " ".join([*found.hints, found.when_right])
        assert not [piece for piece in pieces if piece in said]


@pytest.fixture(scope="module")
def layers(desk) -> list[dict[str, str]]:
    """What each of three ranks shows of the layers of `mystery_cut`."""
    desk.judge.ready()
    run = "from course_lib.classroom.checks.lesson_02 import mystery\n"
    run += "seen = {case: mystery.run(case, group) for case in mystery.LAYERS}"
    assert not desk.judge.run(run).failed
    return desk.judge.pull("seen")


def test_three_real_ranks_show_what_the_notebook_shows(layers):
    cells = nbformat.read(SOLUTIONS / "mystery_cut.ipynb", as_version=4).cells
    shown = next(c.outputs[0].text for c in cells if c.id == "mystery_cut-show")
    assert layers[0] == layers[1] == layers[2]  # as the question says
    text = "\n".join(layers[1][case] for case in "ABCDE")
    assert text == shown.replace("[rank 1] ", "").rstrip("\n")


def test_what_is_shown_agrees_with_what_is_right(layers):
    """The sum's phase and size are those that the cut owes; the shapes are those of its parts."""
    for case, text in layers[0].items():
        layer = mystery.LAYERS[case]
        b, h, f = (size // (3 if at == layer.cut else 1) for size, at in (
            (layer.b, mystery.BATCH), (layer.h, mystery.ROWS), (layer.f, mystery.COLUMNS)
        ))  # fmt: skip
        assert f"W [{h}, {f}]" in text
        phase, count = {
            mystery.COLUMNS: ("backward", layer.b * layer.h),
            mystery.ROWS: ("forward", layer.b * layer.f),
            mystery.BATCH: ("backward", layer.h * layer.f),
        }[layer.cut]
        sums = re.findall(r"(forward|backward) +all_reduce of (\d+) elements", text)
        assert sums == [(phase, str(count))]
        assert ("all_gather" in text) == layer.whole_ends
        ends = (b, layer.h if layer.whole_ends else h), (b, layer.f if layer.whole_ends else f)
        assert f"X {list(ends[0])}  W" in text
        assert f"Y {list(ends[1])}\n" in text
