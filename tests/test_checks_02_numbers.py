"""Lesson 02's questions with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS, EXERCISES = ROOT / "solutions" / "02_one_product", ROOT / "exercises" / "02_one_product"
HELD = ("columns: W on rank 0", "columns: W on rank 2", "rows: W on rank 0", "rows: W on rank 2")
COSTS = ("columns: all-reduced", "rows: all-reduced", "columns: bytes", "rows: bytes")
SENT = 4 / 3  # of an all-reduce over three, the part that each rank sends


def seven(held=(14, 7, 15, 5), summed=(28, 20), times=SENT, item=4) -> dict:
    sent = [times * item * elements for elements in summed]
    return dict(zip(HELD + COSTS, (*held, *summed, *sent), strict=True))


def cuts(codes: str = "23121", weights: tuple = (48, 16, 48, 48, 48)) -> dict:
    found = {}
    for name, code, weight in zip("ABCDE", codes, weights, strict=True):
        found[f"{name}: cut"], found[f"{name}: weight"] = int(code), weight
    return found


ANSWERS = {"seven_by_five": seven(), "mystery_cut": cuts()}
# Exercise, how an answer is wrong, what is written, the name under which it is refused.
MISREAD = [
    ("seven_by_five", "swapped", seven((15, 5, 14, 7), (20, 28)), "rows and columns swapped"),
    ("seven_by_five", "evenly", seven((14, 7, 15, 10)), "as evenly as it goes"),
    ("seven_by_five", "evenly, once", seven((14, 7, 15, 10), times=1), "several ideas"),
    ("seven_by_five", "rounded down", seven((7, 21, 10, 15)), "the rest on the last rank"),
    ("seven_by_five", "padded", seven((14, 14, 15, 15)), "padded"),
    ("seven_by_five", "thirds", seven((35 / 3,) * 4), "a third of everything"),
    ("seven_by_five", "whole", seven((35,) * 4), "the whole weight"),
    ("seven_by_five", "lengths", seven((2, 1, 3, 1)), "only the length"),
    ("seven_by_five", "dW", seven(summed=(35, 35)), "the weight's gradient owed"),
    ("seven_by_five", "directions", seven(summed=(20, 28)), "the other direction"),
    ("seven_by_five", "both", seven(summed=(48, 48)), "both directions"),
    ("seven_by_five", "forward alone", seven(summed=(0, 20)), "nothing owed backward"),
    ("seven_by_five", "half", seven(times=SENT / 2), "half of the way"),
    ("seven_by_five", "once", seven(times=1), "the tensor once"),
    ("seven_by_five", "all", seven(times=SENT * 3), "all ranks together"),
    ("seven_by_five", "thrice", seven(summed=(84, 60), times=SENT / 3), "all ranks together"),
    ("seven_by_five", "numbers", seven(item=1), "numbers, not bytes"),
    ("seven_by_five", "float64", seven(item=8), "wrong number"),
    ("mystery_cut", "a part", cuts(weights=(16,) * 5), "one rank's part"),
    ("mystery_cut", "thrice", cuts(weights=(48,) * 5), "three times the weight"),
    ("mystery_cut", "nine", cuts(weights=(144, 16, 144, 48, 48)), "cut both ways"),
    ("mystery_cut", "directions", cuts("13221"), "forward and backward swapped"),
    ("mystery_cut", "one direction", cuts("13121"), "forward and backward swapped"),
    ("mystery_cut", "ends", cuts("23112"), "misled by the ends"),
    ("mystery_cut", "one end", cuts("23122"), "misled by the ends"),
    ("mystery_cut", "X or W", cuts("21121"), "a sum of another size"),
    ("mystery_cut", "rows backward", cuts("22121"), "nothing sent forward"),
    ("mystery_cut", "no such cut", cuts("73121"), "wrong number"),
    ("mystery_cut", "two of them", cuts("11121"), "several ideas"),
]


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def answered(desk: Desk, name: str, given: object) -> frame.Verdict:
    return desk.check(name, {}, {name: given})


def numbers(folder: Path, name: str) -> dict:
    """What the notebook's answer cell leaves in the variable."""
    cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
    space: dict = {}
    exec(next(c.source for c in cells if c.id == f"{name}-answer"), space)
    return space[name]


@pytest.mark.parametrize("name", ANSWERS)
def test_the_numbers_of_the_solution_are_right(desk, name):
    verdict = answered(desk, name, numbers(SOLUTIONS, name))
    assert (verdict.outcome, verdict.points) == ("right", frame.find(name).points), str(verdict)
    assert answered(desk, name, ANSWERS[name]).outcome == "right"


@pytest.mark.parametrize("name", ANSWERS)
def test_the_numbers_of_the_exercise_are_blank(desk, name):
    handed_out = numbers(EXERCISES, name)
    assert set(handed_out.values()) == {...}
    assert tuple(handed_out) == frame.find(name).fields == tuple(ANSWERS[name])
    assert answered(desk, name, handed_out).outcome == "not attempted"


@pytest.mark.parametrize(
    ("name", "given", "called"),
    [(name, given, called) for name, _, given, called in MISREAD],
    ids=[f"{name}-{how}" for name, how, _, _ in MISREAD],
)
def test_a_misreading_is_refused_by_its_name(desk, name, given, called):
    verdict = answered(desk, name, given)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", called, 0), str(verdict)


def test_no_hint_and_no_verdict_holds_a_right_number(desk):
    found = frame.find("seven_by_five")
    said = [*found.hints, found.when_right]
    said += [answered(desk, who, given).text for who, _, given, _ in MISREAD if who == found.name]
    words = set(re.findall(r"\d[\d.,]*", " ".join(said)))
    right = {"14", "15", "28", "20", "149", "149.3", "149.33", "106", "107", "106.7", "106.67"}
    assert not words & right


def test_no_hint_and_no_verdict_names_the_cut_of_a_layer(desk):
    found = frame.find("mystery_cut")
    said = [*found.hints, found.when_right]
    said += [answered(desk, who, given).text for who, _, given, _ in MISREAD if who == found.name]
    assert not re.search(r"\b(48|16|[A-E] is (cut|by|1|2|3))\b", " ".join(said))
