"""`five_to_two` of lesson 04: a SwiGLU MLP from its shards, one all-reduce in each direction.

An answer is tried in two steps of training, on shards that divide and on uneven ones, and held
against the dense layer and against the messages and bytes of the ledger.
"""

from __future__ import annotations

import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_04 import trial
from course_lib.classroom.checks.lesson_04.five_budget import look_at_traffic
from course_lib.classroom.checks.lesson_04.five_values import (
    Trial,
    look_at_gradients,
    look_at_output,
    look_at_steps,
)
from course_lib.classroom.checks.lesson_04.ready import take


def judge_five(answer: Answer, judge: Judge) -> None:
    """Try five_to_two; raise the Finding that explains best what is wrong."""
    take(answer, judge)
    seed = int.from_bytes(os.urandom(3), "big")
    three, two = [0, 1, 2], [1, 2]  # the two are not the notebook's first two: numbers of the group
    part = 3 + seed % 3
    h = 4 + seed % 2
    # b·s·h divides by 2 and 3, so that the budget is a whole number; the inner size need not.
    cases = [(three, 3 * part), (two, 2 * part + 1), (three, 3 * part - 1)]
    tried = [_try(answer, judge, m, trial.Sizes(2, 3, h, f), seed) for m, f in cases]
    wrong = [one for one in tried if not one.outputs_right()]
    if wrong and all(one.n == 2 for one in wrong):
        refuse_world_numbers(answer, wrong[0].when)
    for look in (look_at_output, look_at_gradients, look_at_traffic, look_at_steps):
        for one in tried:
            look(one)


def _try(answer: Answer, judge: Judge, members: list[int], sizes: trial.Sizes, seed: int) -> Trial:
    when = f"{on(members)} with an inner size of {sizes.f}"
    part = 'bench.part("lesson_04.trial")'
    call = f"{part}.five({answer.name}, {part}.{sizes!r}, {seed}, __trial__)"
    reports = judge.trial(answer, call, members, when)
    _look_at_results(reports, sizes, when)
    return Trial(reports, sizes, seed, when)


def _look_at_results(reports: list[dict], sizes: trial.Sizes, when: str) -> None:
    """Refuse what is no output at all, and changed inputs, whatever the values are."""
    refuse_none(reports, when, "the MLP's output")
    wanted = list(sizes[:3])
    for rank, report in enumerate(reports):
        if report["out"] is None:
            got = f"a {report['kind']}"
            if "shape" in report:
                got = f"a tensor of shape {report['shape']} and dtype {report['dtype']}"
            raise Finding(
                "wrong shape",
                f"Rank {rank} got {got} back {when}; expected is the MLP's output on every rank, a "
                f"tensor of shape {wanted} and dtype float64, like x.",
            )
        if report["changed"]:
            raise Finding(
                "input changed",
                f"Your function changed x or a weight on rank {rank}, {when}. The backward and the "
                "optimizer still need them: work out of place.",
            )


FIVE_TO_TWO = Exercise(
    name="five_to_two",
    title="From five collectives to two",
    points=4,
    judge=judge_five,
    when_right=(
        "Output, all five gradients and two steps of training are those of the dense MLP, on two "
        "ranks and on three, for an inner size that divides and one that does not. One all-reduce "
        "of Φ forward and one backward: 4Φ(n−1)/n elements, however wide the MLP is inside."
    ),
    hints=(
        "Go through the wiring and write its layout in the notation beside each line. Where does "
        "a message bring together what the next line takes apart again?",
        "SiLU and the product of gate and up act on each number alone. On which layout can they "
        "work, and which layout does `down` want?",
        "In the backward: two products read x. Each gives a term of x's gradient. What if x passed "
        "one f, and both products read what comes out of it?",
        "The bias is the same on every rank. In which place does each output get it once, and its "
        "gradient come out complete on every rank without a message?",
    ),
)
