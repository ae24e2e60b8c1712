"""`sequence_mlp` of lesson 06: half a block whose tokens are cut, within a budget.

An answer is tried in two steps of training, on lengths that divide and that do not, and held
against the dense half block, against the messages and bytes of the ledger, and against the meter.
"""

from __future__ import annotations

import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_06 import half_block_trial as trial
from course_lib.classroom.checks.lesson_06.half_block_values import (
    Trial,
    look_at_gradients,
    look_at_output,
    look_at_steps,
    near,
)
from course_lib.classroom.checks.lesson_06.ready import take
from course_lib.ledger import forms

ITEM = 8  # bytes of a float64
PAIR = {"all_gather": 1, "reduce_scatter": 1}
AGAIN = {"all_gather": 2, "reduce_scatter": 1}


def judge_half_block(answer: Answer, judge: Judge) -> None:
    """Try sequence_mlp; raise the Finding that explains best what is wrong."""
    take(answer, judge, "half_block_trial")
    seed = int.from_bytes(os.urandom(3), "big")
    three, two = [0, 1, 2], [1, 2]  # the two are not the notebook's first two: numbers of the group
    h = 5 + seed % 2
    cases = [
        (three, trial.Sizes(2, 6, h, 8)),
        (two, trial.Sizes(3, 5, h, 7)),
        (three, trial.Sizes(2, 7, h, 10)),
    ]
    tried = [_try(answer, judge, members, sizes, seed) for members, sizes in cases]
    wrong = [
        one for one in tried
        if not all(near(r["out"], one.own(one.steps[0][0], i)) for i, r in enumerate(one.reports))
    ]  # fmt: skip
    if wrong and all(one.n == 2 for one in wrong):
        refuse_world_numbers(answer, wrong[0].when)
    for look in (look_at_output, look_at_gradients, look_at_traffic, look_at_memory, look_at_steps):
        for one in tried:
            look(one)


def _try(answer: Answer, judge: Judge, members: list[int], sizes: trial.Sizes, seed: int) -> Trial:
    when = f"{on(members)} with {sizes.s} tokens"
    part = 'bench.part("lesson_06.half_block_trial")'
    call = f"{part}.run({answer.name}, {part}.{sizes!r}, {seed}, __trial__)"
    reports = judge.trial(answer, call, members, when)
    one = Trial(reports, sizes, seed, when)
    refuse_none(reports, when, "the output for its own tokens")
    for rank, report in enumerate(reports):
        wanted = [sizes.b, one.tokens[rank], sizes.h]
        if report["out"] is None:
            _refuse_shape(report, rank, wanted, sizes, when)
        if report["changed"]:
            raise Finding(
                "input changed",
                f"Your function changed x or a weight on rank {rank}, {when}. The backward and the "
                "optimizer still need them: work out of place.",
            )
    return one


def _refuse_shape(report: dict, rank: int, wanted: list, sizes: trial.Sizes, when: str) -> None:
    got = f"a {report['kind']}"
    if "shape" in report:
        got = f"a tensor of shape {report['shape']} and dtype {report['dtype']}"
        if report["shape"] == list(sizes[:3]):
            raise Finding(
                "all tokens",
                f"Rank {rank} returned all {sizes.s} tokens {when}. The next norm works on its own "
                "alone: leave the sum scattered.",
            )
    raise Finding(
        "wrong shape",
        f"Rank {rank} got {got} back {when}; expected is a tensor of shape {wanted} and dtype "
        "float64, like its x.",
    )


def look_at_traffic(one: Trial) -> None:
    """Hold the moves of tokens and the parameters' sums of both directions against the budget."""
    for rank, report in enumerate(one.reports):
        forward, backward = report["forward"], report["backward"]
        there, back = dict(forward["ops"]), dict(backward["ops"])
        sums = back.pop("all_reduce", 0)
        head = (
            f"Values and gradients are right. Rank {rank} sends {_told(forward['ops'])} forward "
            f"and {_told(backward['ops'])} backward {one.when}. "
        )
        if there != PAIR or back not in (PAIR, AGAIN):
            raise Finding(*_idea(there, back, head))
        b, s, h, _ = one.sizes
        row, t = b * h * ITEM, one.tokens[rank]
        gathers, scatter = (one.n - 1) * t * row, (s - t) * row
        debts = forms.all_reduce(one.n, 2 * h * ITEM)
        if (
            sums > 2
            or forward["bytes"] > gathers + scatter
            or backward["bytes"] > (back["all_gather"] * gathers + scatter + debts)
        ):
            raise Finding(
                "more bytes",
                f"{head}Some of these messages carry more than they need to, or there are more "
                f"sums than weight and bias have: {forward['bytes']} bytes forward and "
                f"{backward['bytes']} backward. A move carries tokens as wide as x; the sums carry "
                f"{2 * h} numbers in all.",
            )


def _idea(there: dict, back: dict, head: str) -> tuple[str, str]:
    """Name and text for a wiring over the budget."""
    if "all_reduce" in there and "reduce_scatter" not in there:
        return (
            "all-reduce, then cut",
            f"{head}The branch's sum goes to every rank in full, and each throws away what is not "
            "its own tokens: twice the bytes of a reduce-scatter.",
        )
    if there.get("all_gather", 0) > 1:
        return (
            "gathered twice",
            f"{head}In the forward one gather will do: what of the gathered tokens is needed that "
            "is not behind the norm?",
        )
    if there == PAIR and back.get("reduce_scatter", 0) > 1:
        return "scattered twice", f"{head}Add up what x owes before you scatter it: one message."
    return (
        "over budget",
        f"{head}The budget is one all-gather and one reduce-scatter forward; backward the same, "
        "with one more all-gather where X is gathered again; and sums for weight and bias.",
    )


def look_at_memory(one: Trial) -> None:
    """At most the gathered X may be as wide and as long as all tokens."""
    for rank, report in enumerate(one.reports):
        if report["wide"] > 1:
            raise Finding(
                "all tokens kept",
                f"Values and messages are right. Between forward and backward rank {rank} keeps "
                f"{report['wide']} tensors of all {one.sizes.s} tokens, as wide as x, {one.when}. "
                "One is allowed, the input of `up`. Is something that treats each token by itself "
                "done after the gather? Then every rank does it for all tokens, and keeps what it "
                "needs for its backward.",
            )


def _told(ops: dict) -> str:
    return " and ".join(f"{count} {op}" for op, count in ops.items()) or "nothing"


SEQUENCE_MLP = Exercise(
    name="sequence_mlp",
    title="Half a block with its tokens cut",
    points=4,
    judge=judge_half_block,
    when_right=(
        "Output, five gradients and two steps of training are those of the dense half block, on "
        "two ranks and on three, for lengths that divide and that do not. The tokens moved as "
        "often as two all-reduces would have moved them (once more, if you gather again), the "
        "copies' sums went beside them, and of all tokens a rank kept one tensor at most."
    ),
    hints=(
        "Write the layout behind each step: x is [b, s@tp, h]. Up to which step does each token "
        "stay by itself? Which step needs all tokens, and which one leaves a sum that is owed?",
        "Two pairs of lesson 03 move tokens: `gather` and `reduce_scatter`, along dim 1 with "
        "`sizes`. What does each rank do with the gathered tokens: the same as the others, or work "
        "of its own? That decides the gather's `after`.",
        "The residual and the bias belong to finished tokens. Add them where each token exists "
        "once.",
        "Which parameters does every rank hold whole, and use on its own tokens? A copy that goes "
        "to everybody's own work has its backward in lesson 03.",
    ),
)
