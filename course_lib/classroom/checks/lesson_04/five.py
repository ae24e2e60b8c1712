"""`five_to_two` of lesson 04: a SwiGLU MLP from its shards, one all-reduce in each direction.

An answer is tried in two steps of training, on shards that divide and on uneven ones, and held
against the dense layer and against the messages and bytes of the ledger.
"""

from __future__ import annotations

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
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed
from course_lib.layout import cut


def judge_five(answer: Answer, judge: Judge) -> None:
    """Try five_to_two; raise the Finding that explains best what is wrong."""
    take(answer, judge)
    seed = fresh_seed()
    part = 3 + seed % 3
    # b·s·h divides by 2 and 3, so that the budget is a whole number; the inner size need not. Of 2
    # inner units the last of three ranks has none.
    cases = [(THREE, 3 * part), (TWO, 2 * part + 1), (THREE, 2)]
    tried = [_try(answer, judge, m, trial.Sizes(5, 8, 6, f), seed) for m, f in cases]
    wrong = [one for one in tried if not one.outputs_right()]
    if wrong and all(one.n == 2 for one in wrong):
        refuse_world_numbers(answer, wrong[0].when)
    if wrong and tried[0] not in wrong:  # right where it was called first
        look_at_gradients(tried[0])
        look_at_steps(tried[0])
    for look in (look_at_output, look_at_gradients, look_at_traffic, look_at_steps):
        for one in tried:
            look(one)
    _try_at_once(answer, judge, seed)


def _try(answer: Answer, judge: Judge, members: list[int], sizes: trial.Sizes, seed: int) -> Trial:
    when = f"{on(members)} with an inner size of {sizes.f}"
    empty = [rank for rank, units in enumerate(cut(sizes.f, len(members))) if not units]
    how = {"members": members, "when": when, "empty": empty}
    reports = judge.trial(answer, trial.five, list(sizes), seed, **how)
    _look_at_results(reports, sizes, when)
    return Trial(reports, sizes, seed, when)


def _try_at_once(answer: Answer, judge: Judge, seed: int) -> None:
    """Three layers alive at once, of other sizes and dtypes, one of them on a rank alone."""
    uses = [([5, 8, 6, 7], "float64", False), ([4, 2, 6, 9], "float64", True)]
    uses += [([5, 8, 6, 10], "float32", False)]
    when = "with three layers whose backwards begin after all forwards"
    try:
        reports = judge.trial(answer, trial.five_at_once, uses, seed, members=THREE, when=when)
    except Finding as finding:
        if finding.name not in ("raised", "deadlock", "not called by all"):
            raise
        raise _at_once(finding.text) from None
    for i, (sizes, dtype, alone) in enumerate(uses):
        mine = [report[i] for report in reports]
        ranks = [[one] for one in mine] if alone else [mine]
        for of_group in ranks:
            one = Trial(of_group, trial.Sizes(*sizes), seed, when)
            if any(report["dtype"] != dtype for report in of_group):
                raise Finding(
                    "wrong shape",
                    f"For an x of dtype {dtype} the output is {of_group[0]['dtype']}, {when}; it "
                    "is like x.",
                )
            if not one.first_step_right(1e-10 if dtype == "float64" else 1e-4):
                raise _at_once(f"The one of {dtype} and inner size {sizes[-1]} is not right.")


def _at_once(what: str) -> Finding:
    return Finding(
        "two at once",
        "One layer after the other comes out right. Three of them, whose backwards begin after "
        "all forwards, as in any net, and of which one has a group of its own, do not. Does "
        f"something of one call (in a class, a global name) reach another?\n{what}",
    )


def _look_at_results(reports: list[dict], sizes: trial.Sizes, when: str) -> None:
    """Refuse what is no output at all, and changed inputs, whatever the values are."""
    refuse_none(reports, when, "the MLP's output")
    wanted = list(sizes[:3])
    for rank, report in enumerate(reports):
        if report["out"] is None:
            got = f"a {report['kind']}"
            if report["shape"] is not None:
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
