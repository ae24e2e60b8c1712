"""The checks of lesson 15's functions: their answers on more seeds than one.

They run in this process, by the same trial and the same looks as on the judge's ranks.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_classroom.judge import by_cases
from course_lessons.lesson_15 import cheapest_plan as cheapest
from course_lessons.lesson_15 import mfu_of_log as mfu
from course_lessons.lesson_15 import place_ranks as place
from tests.course_lessons.answers import lesson_15, lesson_15_cheap

RIGHT = lesson_15.RIGHT | lesson_15_cheap.RIGHT
WRONG = lesson_15.WRONG | lesson_15_cheap.WRONG
FOLDER = Path(__file__).resolve().parents[2] / "solutions" / "15_both_at_once"
PARTS = {"place_ranks": place, "mfu_of_log": mfu, "cheapest_plan": cheapest}
SEEDS = range(6)


def reference(name: str) -> str:
    """The answer cell of the solution, without the magic's line."""
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-answer").split("\n", 1)[1]


def tried(name: str, source: str, seed: int) -> None:
    """Raise what the check finds in an answer, on the cases of a seed."""
    space: dict = {}
    exec(source, space)
    part = PARTS[name]
    reports = by_cases.run(space[name], None, part.__name__, seed)["cases"]
    by_cases.look(part.CASES, part.CASES.drawn(seed), reports)


@pytest.mark.parametrize("seeds", [SEEDS[:1], pytest.param(SEEDS[1:], marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RIGHT)
def test_two_other_functions_count_the_same(name, seeds):
    for seed in seeds:
        for source in (*RIGHT[name].values(), reference(name)):
            tried(name, source, seed)


@pytest.mark.parametrize("name", RIGHT)
def test_each_idea_has_an_answer_that_holds_it(name):
    called = {called for _, called in WRONG[name].values()}
    ideas = {idea.name for idea in PARTS[name].CASES.ideas}
    assert len(called) >= 8
    assert ideas - called <= {"the cheapest hour", "seconds", "stage 3 as the others"}


def test_cases_that_do_not_tell_a_wrong_idea_from_the_right_one_are_not_drawn():
    alike = by_cases.Idea("twice", "the same", "", lambda case: 2.0 * case["x"])
    blind = by_cases.Cases(
        ("twice",), 2, lambda r, k: {"x": r.randint(1, 9)}, lambda c: {"twice": 2 * c["x"]},
        (alike,),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="distinguish all 1 ideas"):
        blind.drawn(1)


def test_the_model_that_nobody_can_train_in_time_is_among_the_cases():
    for seed in SEEDS:
        rights = [cheapest.right(case)["choice"] for case in cheapest.CASES.drawn(seed)]
        assert rights[0] is None and sum(right is not None for right in rights) > 6
        assert len({right[2] for right in rights if right}) > 1  # not one stage alone


def test_no_placement_of_a_small_mesh_sends_less_than_the_best_rectangle():
    """All ways to lay 8 ranks on 2 nodes, up to the order within a node."""
    from itertools import combinations

    for tp, heavy in ((2, "tp"), (2, "dp"), (4, "tp"), (4, "dp")):
        case = {"nodes": 2, "gpus": 4, "tp": tp, "dp": 8 // tp, "tp_bytes": 10, "dp_bytes": 10}
        case[f"{heavy}_bytes"] = 70
        every = place.tp_inside(case)
        for first in combinations(every, 4):
            laid = [*first, *(pair for pair in every if pair not in first)]
            assert max(place.out_of_nodes(case, laid)) >= place.right(case)["sent"]
