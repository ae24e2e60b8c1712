"""The question of lesson 11 with numbers: right ones pass, each misreading goes by its name."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.lesson_11 import unit

PATH = Path(__file__).resolve().parent.parent / "solutions" / "11_zero_3" / "choose_unit.ipynb"
RIGHT = unit.RIGHT.answers()


def verdict(values: dict) -> frame.Verdict:
    return frame.judge(frame.find("choose_unit"), {}, {"choose_unit": values}, None)


def test_the_numbers_of_the_solution_are_right():
    cells = nbformat.read(PATH, as_version=4).cells
    names: dict = {}
    exec(next(c.source for c in cells if "choose_unit = {" in c.source), names)
    found = verdict(names["choose_unit"])
    assert (found.outcome, found.points) == ("right", 3), str(found)


def test_the_model_agrees_with_a_count_unit_by_unit():
    """Embedding, blocks, head, one after another through a forward and a backward."""
    for in_a_block, kind in ((1, "block"), (4, "layer")):
        parts = [3, 1, 4, 4] if in_a_block == 4 else [12]
        units = [unit.TABLE, *[p * unit.H**2 for _ in range(unit.LAYERS) for p in parts]]
        units.append(unit.TABLE)
        forward, backward = list(units), units[1:-1]
        assert RIGHT[f"gathers, {kind}"] == len(forward) + len(backward)
        assert RIGHT["shards"] == pytest.approx(sum(units) / unit.N * unit.ITEM / 1e9, rel=1e-12)
        most = sum(units) / unit.N + max(units)
        assert RIGHT[f"most, {kind}"] == pytest.approx(most * unit.ITEM / 1e9, rel=1e-12)
    moves = sum(forward) + sum(backward) + sum(units)
    sent = moves * unit.ITEM * (unit.N - 1) / unit.N / 1e9
    assert RIGHT["sent, block"] == pytest.approx(sent, rel=1e-12)
    assert RIGHT["sent, fast, k = 4"] < RIGHT["sent, block, k = 4"] == 4 * RIGHT["sent, block"]


IDEAS = {idea[0]: unit.replace(unit.RIGHT, **idea[2]).answers() for idea in unit._IDEAS}


@pytest.mark.parametrize("name", IDEAS)
def test_a_misreading_is_refused_by_its_name(name):
    found = verdict(IDEAS[name])
    assert (found.outcome, found.points) == ("wrong", 0)
    assert found.name == name, str(found)


def test_every_idea_changes_a_number():
    for mistake in unit.mistakes():
        assert mistake.values, mistake.name


def test_units_blanks_and_words():
    assert verdict({**RIGHT, "shards": RIGHT["shards"] * 1e3}).name == "unit"
    assert verdict({**RIGHT, "shards": ...}).outcome == "not attempted"
    assert verdict({**RIGHT, "gathers, block": "66"}).name == "not a number"
    assert verdict({**RIGHT, "gathers, block": 70}).name == "wrong number"


def test_no_text_holds_a_right_number():
    exercise = frame.find("choose_unit")
    said = " ".join([*exercise.hints, exercise.when_right, *(m.text for m in unit.mistakes())])
    for value in RIGHT.values():
        assert f"{value:.3g}" not in said.split()
