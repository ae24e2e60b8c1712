"""Lesson 08's question about groups: misreadings are named, and no answer is given away."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_08 import groups

ROOT = Path(__file__).resolve().parent.parent
SOLUTION = ROOT / "solutions" / "08_gpt_that_trains" / "which_group.ipynb"
EXERCISE = ROOT / "exercises" / "08_gpt_that_trains" / "which_group.ipynb"


def played(dp: int = 3, tp: int = 4, rank: int = 7) -> dict[str, float]:
    """The answers, counted on a mesh that is written out rank by rank."""
    mesh = [[d * tp + t for t in range(tp)] for d in range(dp)]
    row = next(row for row in mesh if rank in row)
    column = next(list(column) for column in zip(*mesh, strict=True) if rank in column)
    everyone = [(d, t) for d in range(dp) for t in range(tp)]
    return {
        "a": min(row),
        "b": min(column),
        "c": len({d for d, _ in everyone}),  # who sees which rows
        "d": len(row),
        "e": len(column),
        "f": len(column),
        "g": len(everyone),
        "h": len({t for _, t in everyone}),  # different shards
        "i": 1,
        "j": len({d for d, _ in everyone}),
        "k": len(set(everyone)),
    }


RIGHT = played()
MISREAD = [
    ("turned over", {"a": 6, "b": 1}, "the mesh turned over"),
    ("the groups exchanged", {"a": 3, "b": 4}, "the mesh turned over"),
    ("coordinates", {"a": 1, "b": 1}, "a number, not a rank"),
    ("rows by tp rank", {"c": 4}, "tp ranks read alike"),
    ("rows by rank", {"c": 12}, "tp ranks read alike"),
    ("rows for all", {"c": 1}, "tp ranks read alike"),
    ("activations over dp", {"d": 3}, "a partial sum within a replica"),
    ("activations over all", {"d": 12}, "a partial sum within a replica"),
    ("shards' gradients over tp", {"e": 4}, "shards are different numbers"),
    ("shards' gradients over all", {"e": 12}, "shards are different numbers"),
    ("no sum over dp", {"e": 1, "f": 1}, "replicas never met"),
    ("copies summed over all", {"f": 12}, "a copy that saw the same"),
    ("copies summed over tp", {"f": 4}, "a copy that saw the same"),
    ("sequence forgotten", {"g": 3}, "other tokens, so a sum"),
    ("sequence over tp alone", {"g": 4}, "other tokens, so a sum"),
    ("norm of all shards", {"h": 12}, "distinct shards"),
    ("norm over dp", {"h": 3}, "distinct shards"),
    ("norm of one shard", {"h": 1}, "distinct shards"),
    ("copies in the norm", {"i": 12}, "a copy counts once"),
    ("copies in the norm by tp", {"i": 4}, "a copy counts once"),
    ("copies in the norm by dp", {"i": 3}, "a copy counts once"),
    ("tokens of all", {"j": 12}, "tokens counted by tp ranks"),
    ("tokens over tp", {"j": 4}, "tokens counted by tp ranks"),
    ("own tokens", {"j": 1}, "tokens counted by tp ranks"),
    ("masks by tp", {"k": 4}, "heads are a rank's own"),
    ("masks by dp", {"k": 3}, "heads are a rank's own"),
    ("the rank itself", {"a": 7, "b": 7}, "a number, not a rank"),
    ("the first of all", {"a": 0, "b": 0}, "another rank's group"),
    ("no sum in sequence", {"g": 1}, "replicas never met"),
    ("nothing to sum", {"d": 1}, "a partial sum within a replica"),
    ("one mask", {"k": 1}, "heads are a rank's own"),
    ("tp for dp throughout", {"c": 4, "d": 3, "e": 4, "f": 4, "h": 3, "j": 4}, "several ideas"),
    ("unforeseen", {"d": 7}, "wrong number"),
]


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def test_the_right_numbers_are_right(desk):
    verdict = desk.check("which_group", {}, {"which_group": RIGHT})
    assert verdict.outcome == "right", str(verdict)
    assert verdict.points == 3
    assert not desk.judge.running


@pytest.mark.parametrize(("how", "values", "name"), MISREAD, ids=[one[0] for one in MISREAD])
def test_a_misreading_is_named(desk, how, values, name):
    verdict = desk.check("which_group", {}, {"which_group": {**RIGHT, **values}})
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


def test_every_idea_is_tried_and_none_is_the_right_number():
    tried = [values for _, values, _ in MISREAD]
    for mistake in groups.MISTAKES:
        for field, value in mistake.values.items():
            assert value != RIGHT[field], (mistake.name, field)
            assert any(one.get(field) == value for one in tried), (mistake.name, field, value)


def test_the_reference_is_right_and_a_blank_is_not_attempted(desk):
    cells = nbformat.read(SOLUTION, as_version=4).cells
    source = next(c.source for c in cells if "which_group = {" in c.source)
    found: dict = {}
    exec(source, found)
    assert desk.check("which_group", {}, found).outcome == "right"
    blank = {**RIGHT, "e": ...}
    verdict = desk.check("which_group", {}, {"which_group": blank})
    assert verdict.outcome == "not attempted" and "'e'" in verdict.text


def test_the_exercise_holds_no_number():
    cells = nbformat.read(EXERCISE, as_version=4).cells
    source = next(c.source for c in cells if "which_group = {" in c.source)
    assert source.count("...") == len(RIGHT)
    assert not re.search(r"\"[a-k]\": *\d", source)


def test_neither_a_hint_nor_a_verdict_gives_a_number_away():
    exercise = frame.find("which_group")
    said = " ".join(exercise.hints) + exercise.when_right
    assert not re.search(r"\d", said)
