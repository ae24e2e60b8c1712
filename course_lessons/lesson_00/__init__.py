"""Checks of the exercises of lesson 00: the ranks of a cell, and a first collective.

Both exercises introduce checks: their outcomes, their hints, and the mistakes they recognise.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from course_classroom.judge.answer import Answer
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on, refuse_none, refuse_world_numbers
from course_classroom.judge.looking import (
    THREE,
    TWO,
    came_back,
    fresh_seed,
    ideas,
    near,
    refuse_idea,
)
from course_classroom.judge.thought import Mistake, Thought, compare
from course_classroom.judge.words import Page
from course_lessons.lesson_00 import trial

RANKS = 3  # in the question
WHO, SAYS = Page(__file__, "who_knows"), Page(__file__, "mean_over_ranks")


def judge_mean(answer: Answer, judge: Judge) -> None:
    """Try mean_over_ranks on three ranks, on two ranks without rank 0, and on single numbers."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    for members, shape, dtype in (
        (THREE, [7 + 6 * (seed % 2)], "float64"),
        (TWO, [4, 5 + 2 * (seed % 2)], "float32"),
        (THREE, [], "float64"),  # a number on each rank, as in the text
    ):
        shapes, where = [[shape] * len(members)] * 2, [on(members)] * 2
        for call in trial.calls(answer, judge, members, shapes, seed, dtype, where):
            _look_at_results(call.reports, call.when)
            _look_at_values(answer, call)
            _look_at_traffic(call)
            trial.refuse_overwritten(call.reports, "The mean", call.when)


def _look_at_results(reports: list[dict], when: str) -> None:
    refuse_none(reports, when, "the mean")
    for rank, report in enumerate(reports):
        if report["out"] is None:
            raise SAYS("wrong shape", rank=rank, when=when, got=came_back(report))
        if report["changed"]:
            raise SAYS("input changed", rank=rank)


def _look_at_values(answer: Answer, call: trial.Call) -> None:
    """Compare every rank's result with the mean, and with the values of each misreading."""
    n, when, total = call.n, call.when, call.total
    results = [report["out"] for report in call.reports]
    right = [near(out, total / n) for out in results]
    if all(right):
        return
    trial.refuse_second(call.number > 0, when)
    own = {"nothing sent": call.inputs, "divided, not added": [x / n for x in call.inputs]}
    refuse_idea(results, ideas(SAYS, {"sum": [total] * n, **own}), when)
    if any(right):
        raise SAYS("not on every rank")
    if n == 2:
        refuse_world_numbers(answer, when)
    largest = torch.stack(call.inputs).max(0).values
    wrong: list[tuple[str, Tensor]] = [
        *(("a fixed number of ranks", total / k) for k in (2, 3, 4)),
        ("divided by the elements", total / total.numel()),
        ("divided twice", total / n**2),
        *(("wrong values #1", largest / k) for k in (1, n)),
        ("whole numbers", (total / n).floor()),
        ("whole numbers", (total / n).round()),
    ]
    refuse_idea(results, ideas(SAYS, [(entry, [value] * n) for entry, value in wrong]), when)
    raise SAYS("wrong values #2", when=when)


def _look_at_traffic(call: trial.Call) -> None:
    x, n = call.inputs[0], call.n
    allowed = 2 * (n - 1) * -(-x.numel() // n) * x.itemsize  # in chunks that may be padded
    for rank, report in enumerate(call.reports):
        sent = report["bytes"]
        if sent > allowed:
            raise SAYS("too much sent", when=call.when, rank=rank, sent=sent, allowed=allowed)


def judge_who_knows(given: Mapping) -> None:
    """Compare the numbers with the right number for each kind of cell, and with misreadings."""
    right = {"a": RANKS, "b": 1, "c": 0, "d": RANKS, "e": 2}
    if given["a"] == given["d"] == 2:  # the default number of ranks of a notebook
        raise WHO("wrong number")
    mistakes = (
        ("one rank is not all", {"b": RANKS}),
        ("a range counts both ends", {"e": 1}),
        ("the notebook is not a rank #1", {"c": RANKS}),
        ("push reaches all", {"d": 0}),
        ("push reaches all", {"d": 1}),
        ("a range is not all", {"e": RANKS}),
        ("the notebook is not a rank #2", {name: number + 1 for name, number in right.items()}),
        ("variables are not shared", dict.fromkeys(right, RANKS)),
        ("which rank, not how many", {"b": 0}),
        ("its value", {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}),
    )
    known = tuple(Mistake(*WHO.of(entry), values) for entry, values in mistakes)
    compare(given, right, known, apart=True)


EXERCISES = (
    Thought(fields=("a", "b", "c", "d", "e"), judge=judge_who_knows, **WHO.about),
    Exercise(judge=judge_mean, **SAYS.about),
)
