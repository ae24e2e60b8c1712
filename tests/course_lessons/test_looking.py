"""The order in which trials are looked at, and how a wrong idea is known: without a rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

import pytest
import torch

from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.looking import Idea, Looks, near, recognise, refuse_idea

PLAIN = Answer("f", (), True, frozenset())
READS_RANK = Answer("f", (), True, frozenset({"rank"}))
ORDER = ["returned", "shape", "unchanged", "value", "gradients", "traffic", "memory", "later_steps"]


@dataclass
class Trial:
    n: int
    when: str
    wrong: str = ""
    seen: list = field(default_factory=list)

    @property
    def reports(self) -> list[dict]:
        return [{"changed": False}] * self.n


def looks(log: list[str]) -> Looks:
    def look(name: str):
        def at(trial: Trial) -> None:
            log.append(f"{name} {trial.when}")
            if trial.wrong == name:
                raise Finding(name, trial.when)

        return at

    return Looks(**{name: look(name) for name in ORDER})


def test_there_is_one_order_and_costs_come_after_what_is_right():
    assert [one.name for one in fields(Looks)] == ORDER
    log: list[str] = []
    looks(log).at(PLAIN, iter([Trial(3, "a"), Trial(2, "b")]))
    assert log == [
        *(f"{name} {when}" for when in "ab" for name in ORDER[:4]),
        *(f"{name} {when}" for name in ORDER[4:] for when in "ab"),
    ]


@pytest.mark.parametrize("name", ORDER)
def test_the_first_look_that_finds_something_speaks(name):
    log: list[str] = []
    with pytest.raises(Finding) as found:
        looks(log).at(PLAIN, [Trial(3, "a"), Trial(2, "b", name), Trial(3, "c", "returned")])
    expected = name if name in ORDER[:4] else "returned"
    assert found.value.name == expected, "a wrong value is heard of before what another costs"


def test_an_answer_that_gives_a_wrong_value_is_tried_no_more():
    made = []

    def trials():
        for when in "abc":
            made.append(when)
            yield Trial(3, when, "value" if when == "b" else "")

    with pytest.raises(Finding):
        looks([]).at(PLAIN, trials())
    assert made == ["a", "b"]


@pytest.mark.parametrize(
    ("sizes", "answer", "name"),
    [
        ((3, 2), READS_RANK, "uses world numbers"),
        ((3, 2), PLAIN, "value"),
        ((2, 3), READS_RANK, "value"),
        ((3, 3), READS_RANK, "value"),
    ],
)
def test_what_is_right_in_the_whole_world_alone_may_read_the_world_s_numbers(sizes, answer, name):
    first, last = sizes
    trials = [Trial(first, "a"), Trial(last, "b", "value")]
    with pytest.raises(Finding) as found:
        looks([]).at(answer, trials)
    assert found.value.name == name


def ideas() -> list[Idea]:
    one, two = torch.ones(2, dtype=torch.float64), torch.full((2,), 2.0, dtype=torch.float64)
    return [
        Idea("on one rank", "…", [one, two]),
        Idea("twice", "That is twice.", [two, two]),
        Idea("twice again", "…", [two, two]),
    ]


def test_an_idea_is_known_by_what_it_gives_on_every_rank():
    two = torch.full((2,), 2.0, dtype=torch.float64)
    assert recognise([two, two + 1e-12], ideas()).name == "twice", "the first that fits"
    assert recognise([two, two + 1], ideas()) is None
    assert recognise([two], ideas()) is None, "a rank more or less is not every rank"
    assert recognise([two, None], ideas()) is None
    with pytest.raises(Finding) as found:
        refuse_idea([two, two], ideas(), "on 2 ranks", "Look: ")
    assert (found.value.name, found.value.text) == ("twice", "Look: That is twice. (on 2 ranks.)")
    refuse_idea([two, two + 1], ideas(), "on 2 ranks")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1.0, 1.0 + 1e-12, True),
        (1.0, 1.0 + 1e-8, False),
        (None, 1.0, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (torch.ones(2).double(), torch.ones(2, 1).double(), False),
        (torch.ones(2).double(), torch.ones(2).double() + 1e-12, True),
        (torch.ones(0).double(), torch.ones(0).double(), True),
    ],
)
def test_near_is_equal_to_rounding(a, b, same):
    assert near(a, b) is same
