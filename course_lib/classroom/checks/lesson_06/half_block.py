"""`sequence_mlp` of lesson 06: half a block whose tokens are cut, within a budget.

An answer is tried in two steps of training, on lengths that divide and that do not, and held
against the dense half block, against the messages and bytes of the ledger, and against the meter.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_06 import half_block_trial as trial
from course_lib.classroom.checks.lesson_06.half_block_values import (
    Trial,
    look_at_gradients,
    look_at_output,
    look_at_steps,
)
from course_lib.classroom.checks.looking import (
    ITEM,
    THREE,
    TWO,
    Looks,
    came_back,
    counted,
    fresh_seed,
    refuse_changed,
)
from course_lib.ledger import forms

PAIR = {"all_gather": 1, "reduce_scatter": 1}
AGAIN = {"all_gather": 2, "reduce_scatter": 1}


def judge_half_block(answer: Answer, judge: Judge) -> None:
    """Try sequence_mlp; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    cases = [
        (THREE, trial.Sizes(2, 7, 5, 10)),
        (TWO, trial.Sizes(3, 5, 8, 7)),
        (THREE, trial.Sizes(4, 6, 9, 8)),
    ]
    LOOKS.at(answer, (_try(answer, judge, members, sizes, seed) for members, sizes in cases))


def _try(answer: Answer, judge: Judge, members: list[int], sizes: trial.Sizes, seed: int) -> Trial:
    when = f"{on(members)} with {sizes.s} tokens"
    reports = judge.trial(answer, trial.run, sizes, seed, members=members, when=when)
    return Trial(reports, sizes, seed, when)


def look_at_returned(one: Trial) -> None:
    refuse_none(one.reports, one.when, "the output for its own tokens")


def look_at_shape(one: Trial) -> None:
    """A Finding where a rank's output is not shaped like its x."""
    b, s, h, _ = one.sizes
    for rank, report in enumerate(one.reports):
        if report["out"] is not None:
            continue
        if report["shape"] == [b, s, h]:
            raise Finding(
                "all tokens",
                f"Rank {rank} returned all {s} tokens {one.when}. The next norm works on its own "
                "alone: leave the sum scattered.",
            )
        raise Finding(
            "wrong shape",
            f"Rank {rank} got {came_back(report)} back {one.when}; expected is a tensor of shape "
            f"{[b, one.tokens[rank], h]} and dtype float64, like its x.",
        )


def look_at_inputs(one: Trial) -> None:
    refuse_changed(one, "x, a weight or the list of sizes")


def look_at_traffic(one: Trial) -> None:
    """Hold the moves of tokens and the parameters' sums of both directions against the budget."""
    for rank, report in enumerate(one.reports):
        forward, backward = report["forward"], report["backward"]
        there, back = dict(forward["ops"]), dict(backward["ops"])
        sums = back.pop("all_reduce", 0)
        head = (
            f"Values and gradients are right. Rank {rank} sends {counted(forward['ops'])} forward "
            f"and {counted(backward['ops'])} backward {one.when}. "
        )
        if there != PAIR or back not in (PAIR, AGAIN):
            raise Finding(*_idea(there, back, head))
        b, s, h, _ = one.sizes
        row, t = b * h * ITEM, one.tokens[rank]
        gathers, scatter = (one.n - 1) * t * row, (s - t) * row
        sums_of_two = forms.all_reduce(one.n, 2 * h * ITEM)
        if (
            sums > 2
            or forward["bytes"] > gathers + scatter
            or backward["bytes"] > (back["all_gather"] * gathers + scatter + sums_of_two)
        ):
            raise Finding(
                "more bytes",
                f"{head}Some of these messages carry more than they need to, or there are more "
                f"sums than weight and bias have: {forward['bytes']} bytes forward and "
                f"{backward['bytes']} backward. A move carries tokens as wide as x; the sums carry "
                f"{2 * h} elements in all.",
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
            "does not come after the norm?",
        )
    if there == PAIR and back.get("reduce_scatter", 0) > 1:
        return (
            "scattered twice",
            f"{head}Add up the terms of x's gradient before you scatter it: one message.",
        )
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


LOOKS = Looks(
    returned=look_at_returned,
    shape=look_at_shape,
    unchanged=look_at_inputs,
    value=look_at_output,
    gradients=look_at_gradients,
    traffic=look_at_traffic,
    memory=look_at_memory,
    later_steps=look_at_steps,
)
SEQUENCE_MLP = Exercise(
    name="sequence_mlp",
    title="Half a block with its tokens sharded",
    points=4,
    judge=judge_half_block,
    when_right=(
        "Output, five gradients and two steps of training are those of the dense half block, on "
        "two ranks and on three, for lengths that divide and that do not. The tokens moved as "
        "often as two all-reduces would have moved them (once more, if you gather again), the "
        "parameters' sums went beside them, and of all tokens a rank kept one tensor at most."
    ),
    hints=(
        "Write the layout after each step: x is [b, s@tp, h]. Up to which step does each token "
        "stay by itself? Which step needs all tokens, and which one leaves a partial sum?",
        "Two pairs of lesson 03 move tokens: `gather` and `reduce_scatter`, along dim 1 with "
        "`sizes`. What does each rank do with the gathered tokens: the same as the others, or work "
        "of its own? That decides the gather's `after`.",
        "The residual and the bias belong to finished tokens. Add them where each token exists "
        "once.",
        "Which parameters are replicated, and used by each rank on its own tokens? Lesson 03 has a "
        "pair whose forward does nothing and whose backward sums what comes back from all ranks.",
    ),
)
