"""Questions answered by a dictionary of numbers: blanks, what counts as a number, what is said.

The question here is a toy; those of the lessons have tests of their own.
"""

from __future__ import annotations

from fractions import Fraction

import numpy
import pytest
import torch

from course_classroom.judge import frame
from course_classroom.judge.desk import Desk
from course_classroom.judge.thought import Mistake, Thought, compare

RIGHT = {"a": 240.0, "b": 70.0, "c": 11.0, "d": 0.0}
MISTAKES = (
    Mistake("twice", "Counted twice.", {"a": 480.0, "b": 140.0, "c": 22.0}),
    Mistake("one lower", "From zero.", {"b": 69.0}),
)
TOY = Thought(
    name="toy",
    title="A toy",
    points=3,
    fields=("a", "b", "c", "d"),
    judge=lambda given: compare(given, RIGHT, MISTAKES),
    when_right="So it is.",
    hints=("Think.",),
)


def verdict(given: object) -> frame.Verdict:
    return frame.judge(TOY, {}, {"toy": given}, Desk().judge)


def wrong(**changes: object) -> frame.Verdict:
    found = verdict({**RIGHT, **changes})
    assert (found.outcome, found.points) == ("wrong", 0), str(found)
    return found


class Silent:
    """An object that raises when it is asked for its text."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("given", [..., dict.fromkeys(RIGHT, ...), dict.fromkeys(RIGHT), {}])
def test_blanks_are_not_attempted(given):
    found = verdict(given)
    assert (found.outcome, found.points, found.name) == ("not attempted", 0, "")
    assert "Still blank. " in found.text


def test_a_variable_that_is_not_there_is_not_called_blank():
    """Its cell may hold numbers: a kernel that was started anew, or a stop, took them away."""
    for found in (frame.judge(TOY, {}, {}, Desk().judge), verdict(None)):
        assert found.outcome == "not attempted"
        assert "There is no `toy` yet" in found.text and "stopped before its end" in found.text
        assert "blank" not in found.text


def test_numbers_whose_cell_was_not_run_since_are_spoken_of():
    assert "once their cell has run to its end" in verdict({**RIGHT, "a": ...}).text


@pytest.mark.parametrize(
    "kind",
    [int, float, Fraction, numpy.float32, numpy.int64, numpy.array, torch.tensor]
    + [lambda value: torch.tensor(value, dtype=torch.float64, requires_grad=True)],
)
def test_a_number_is_a_number_whatever_its_type(kind):
    found = verdict({name: kind(value) for name, value in RIGHT.items()})
    assert (found.outcome, found.points, found.text) == ("right", 3, "So it is.")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("70", "'70'"),
        ("70 MB", "'70 MB'"),
        ("x" * 60, "of type str"),
        (True, "True"),
        (numpy.bool_(True), "True"),
        (70j, "70j"),
        (float("nan"), "nan"),
        (torch.tensor(float("nan")), "tensor(nan)"),
        (float("inf"), "inf"),
        (10**400, "of type int"),
        (10**5000, "of type int"),
        (torch.tensor([70.0, 1.0]), "tensor([70.,  1.])"),
        (torch.ones(3, 5), "of type Tensor"),
        (torch.tensor(70.0, device="meta"), "meta"),
        ([70.0], "[70.0]"),
        (Silent(), "of type Silent"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_is_refused_and_shown(given, shown):
    found = wrong(b=given)
    assert found.name == "not a number"
    assert "`toy['b']`" in found.text
    assert shown in found.text
    assert "without its unit" in found.text


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("rank 2", "without quotes: write 2."),
        ("70 MB", "without quotes: write 70."),
        ("1 or 2", "without its unit."),
        ([0, 1, 2], "one number, not a collection"),
    ],
    ids=str,
)
def test_what_to_write_instead_is_said_where_it_can_be_told(given, advice):
    assert advice in wrong(b=given).text


@pytest.mark.parametrize(
    "given", [[240.0, 70.0, 11.0, 0.0], 240, "parameter counted too", torch.ones(4)]
)
def test_what_is_no_dictionary_is_refused(given):
    found = verdict(given)
    assert (found.outcome, found.name) == ("wrong", "not a dictionary")
    assert type(given).__name__ in found.text


def test_three_digits_are_enough_and_two_are_not():
    assert verdict({**RIGHT, "a": 241.0, "b": 69.9}).outcome == "right"
    assert wrong(a=242.0).name == "wrong number"


NOT_RIGHT = "Your value of {} is wrong. The other values are correct."


@pytest.mark.parametrize(
    ("changes", "name", "text"),
    [
        (
            {"a": 480, "b": 140, "c": 22},
            "twice",
            "Counted twice. This concerns 'a', 'b' and 'c'. The other values are correct.",
        ),
        ({"b": 69}, "one lower", "From zero. This concerns 'b'. The other values are correct."),
        (
            {"a": 480, "b": 140, "c": 12},
            "twice",
            "Counted twice. This concerns 'a' and 'b', but 'c' is wrong too.",
        ),
        ({"b": 69, "c": 12}, "wrong number", NOT_RIGHT.format("'b' and 'c'")),  # a guess
        ({"b": 69, "d": 5}, "wrong number", NOT_RIGHT.format("'b' and 'd'")),
        ({"a": 7, "c": 5}, "wrong number", NOT_RIGHT.format("'a' and 'c'")),
    ],
)
def test_a_mistake_is_named_with_the_fields_that_it_explains(changes, name, text):
    found = wrong(**changes)
    assert (found.name, found.text) == (name, text)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1e3, "large by a thousand"),
        (1e-3, "small by a thousand"),
        (1e6, "large by a million"),
        (1e-9, "small by a billion"),
        (8, "large by eight"),
    ],
)
def test_a_wrong_unit_is_told_from_a_wrong_number(factor, said):
    found = wrong(a=RIGHT["a"] * factor, c=RIGHT["c"] * factor)
    assert found.name == "unit"
    assert f"'a' and 'c' are too {said}" in found.text
    assert "is too" in wrong(a=RIGHT["a"] * factor).text


def test_more_keys_than_asked_for_do_no_harm():
    assert verdict({**RIGHT, "e": "a note of my own"}).outcome == "right"
