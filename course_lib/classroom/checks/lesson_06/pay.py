"""`pay_sums` of lesson 06: of ten gradients those that are partial sums, in one message.

An answer completes the gradients of a small decoder in three steps of training, on real ranks,
beside one process; what it did to each parameter is recognised, and the ledger holds it to the
budget.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from course_lib.classroom.checks import general
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_06 import decoder
from course_lib.classroom.checks.lesson_06 import pay_trial as trial
from course_lib.classroom.checks.lesson_06.pay_trial import ALONE, MEAN, OWED, RIGHT, ROUNDED, TIMES
from course_lib.classroom.checks.looking import (
    ITEM,
    THREE,
    TWO,
    Looks,
    another_step,
    counted,
    fresh_seed,
)
from course_lib.layout import cut
from course_lib.ledger import forms

# What to ask where a gradient was left as it was; a question, and not the answer.
ASK = {
    "positions": "Which rows of the table does a rank read, and which rows of its gradient are "
    "zero on it?",
    "norm.weight": "On which tokens does a rank use it?",
    "norm.bias": "It stands beside the norm's weight. On which tokens does a rank use it?",
    "q_norm.weight": "It comes after the gather, and sees all tokens. Of which heads?",
    "out.bias": "Is it added before the reduce-scatter or after it? To which tokens, then?",
}


class Trial(NamedTuple):
    """The answer's steps on a group."""

    reports: list[dict]
    when: str

    @property
    def found(self) -> list[tuple[dict, dict]]:
        """Of each rank, in the first step: what each gradient is, and how far it is off."""
        return [(report["steps"][0]["found"], report["steps"][0]["off"]) for report in self.reports]


def judge_pay(answer: Answer, judge: Judge) -> None:
    """Three steps on three ranks and on two, with lengths that do not divide."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    cases = [(THREE, 7), (TWO, 5), (THREE, 2)]
    LOOKS.at(answer, (_try(answer, judge, members, length, seed) for members, length in cases))


def _try(answer: Answer, judge: Judge, members: list[int], length: int, seed: int) -> Trial:
    when = f"{on(members)} with {length} tokens"
    empty = [rank for rank, tokens in enumerate(cut(length, len(members))) if not tokens]
    reports = judge.trial(answer, trial.run, length, seed, members=members, when=when, empty=empty)
    return Trial(reports, when)


def _look_at_returned(one: Trial) -> None:
    refuse_none(
        [report["steps"][0] for report in one.reports], one.when, "the dictionary of gradients"
    )


def _look_at_shape(one: Trial) -> None:
    when, firsts = one.when, [report["steps"][0] for report in one.reports]
    for rank, first in enumerate(firsts):
        what, _, name = first["problem"].partition(" ")
        if what == "no":
            raise Finding(
                "not a dictionary",
                f"Rank {rank} returned a {first['kind']} {when}; expected is a dictionary with all "
                f"{len(decoder.SHAPES)} gradients under their names.",
            )
        if what == "missing":
            raise Finding(
                "a gradient missing",
                f"Under {name!r} rank {rank} returned no tensor, {when}. All "
                f"{len(decoder.SHAPES)} gradients come back, also those that need no sum.",
            )
        if what == "shape":
            raise Finding(
                "wrong shape",
                f"The gradient of {name} came back in another shape or dtype than it had, on rank "
                f"{rank}, {when}. A gradient is shaped like its parameter.",
            )


def _look_at_dictionary(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        gone = report["steps"][0]["emptied"]
        if gone:
            raise Finding(
                "input changed",
                f"{gone[0]!r} is gone from the caller's dictionary on rank {rank}, {one.when}. "
                "Read it, and return a dictionary with all names; the caller still needs its own.",
            )


def _look_at_gradients(one: Trial) -> None:
    found, when = one.found, one.when
    names = list(decoder.SHAPES)
    cut = [name for name in decoder.CUT if any(one[name] != RIGHT for one, _ in found)]
    if cut:
        raise Finding(
            "summed what is cut",
            f"{cut[0]} is sharded: each rank has the rows of its own heads, and all there is of "
            f"their gradient. Something was done to it, {when}.",
        )
    for name in names:
        words = {one[name] for one, _ in found}
        if words == {RIGHT}:
            continue
        rank = max(range(len(found)), key=lambda r: found[r][1][name])
        off = f"On rank {rank} it is off by {found[rank][1][name]:.1%} of its size, {when}."
        if words <= {ROUNDED, RIGHT}:
            raise Finding(
                general.ROUNDED,
                f"The gradient of {name} is right but for rounding. {off} It went through a "
                "narrower type than it has: sum in the dtype of the gradients.",
            )
        if words <= {MEAN, RIGHT} and MEAN in words:
            raise Finding(
                "mean",
                f"The gradient of {name} is a mean over the ranks, and should be their sum: each "
                f"has a term of it and no estimate of all. {off}",
            )
        if words <= {TIMES, RIGHT} and TIMES in words and name not in OWED:
            raise Finding(
                "summed what was whole",
                f"{name} comes back {len(found)} times too large. All ranks do the same with it, "
                f"on all tokens: each had the complete gradient already. {off}",
            )
        if words <= {ALONE, RIGHT} and name in OWED:
            if all({f[one] for f, _ in found} != {RIGHT} for one in OWED):
                raise Finding(
                    "nothing summed",
                    f"Every rank kept all of its own gradients. {off} Look for parameters that "
                    "are replicated, and do different work on each rank.",
                )
            raise Finding(
                "a debt left", f"The gradient of {name} is a partial sum. {off} {ASK[name]}"
            )
        if words <= {TIMES, RIGHT} and TIMES in words:
            raise Finding(
                "summed twice",
                f"The gradient of {name} comes back {len(found)} times too large: it was a "
                f"complete sum already, and was summed once more. {off}",
            )
        fine = [r for r, (one, _) in enumerate(found) if one[name] == RIGHT]
        if len(fine) == 1:
            raise Finding(
                "on one rank only",
                f"The gradient of {name} is complete on rank {fine[0]} alone, and every rank needs "
                f"it: a reduce to one rank? {off}",
            )
        if all(report["steps"][0]["mixed"] for report in one.reports):
            raise Finding(
                "mixed up",
                f"The gradient of {name} is not the dense one's, and all five together have the "
                f"right sum. {off} Either the ranks did not join the five in one order (a `set` of "
                "names has another order in each process), or they were taken apart in another "
                "order than they were joined in.",
            )
        raise Finding("wrong gradient", f"The gradient of {name} is not the dense one's. {off}")


def _look_at_traffic(one: Trial) -> None:
    """One all-reduce, and no element in it that needs no sum."""
    n = len(one.reports)
    fair = forms.all_reduce(n, ITEM * sum(prod(decoder.SHAPES[name]) for name in OWED))
    for rank, report in enumerate(one.reports):
        first = report["steps"][0]
        sent = counted(first["ops"])
        head = f"All ten gradients are right. Rank {rank} sends {sent}, {one.when}. "
        if first["ops"] != {"all_reduce": 1}:
            if set(first["ops"]) == {"all_reduce"}:
                raise Finding(
                    "a message for each",
                    f"{head}The sums are small, and each message costs its latency α. Join them, "
                    "sum once, take them apart.",
                )
            raise Finding(
                "another message", f"{head}Every rank wants the sum: one all-reduce does it."
            )
        if first["bytes"] > fair + 1e-9:
            raise Finding(
                "more than is owed",
                f"{head}It carries {first['bytes']} bytes where {fair:g} would do: something in it "
                "needs no sum.",
            )


def _look_at_steps(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        for step, seen in enumerate(report["steps"]):
            if seen["overwritten"]:
                raise Finding(
                    "one buffer for all calls",
                    f"After call {step + 1} on rank {rank}, {one.when}, the gradients that an "
                    "earlier call returned hold other elements: all calls share one buffer. The "
                    "caller may still need them.",
                )
            if seen["problem"] or set(seen["found"].values()) != {RIGHT}:
                raise another_step(one, rank, step, "another later step")


LOOKS = Looks(
    returned=_look_at_returned,
    shape=_look_at_shape,
    unchanged=_look_at_dictionary,
    gradients=_look_at_gradients,
    traffic=_look_at_traffic,
    later_steps=_look_at_steps,
)
PAY_SUMS = Exercise(
    name="pay_sums",
    title="Which gradients are partial sums?",
    points=4,
    judge=judge_pay,
    when_right=(
        "In three steps of training all ten gradients were those of one process, on two ranks and "
        "on three, even where a rank had no token; and one message carried the partial sums and "
        "nothing else. Not what a parameter is called decides, but whether all ranks do the same "
        "with it."
    ),
    hints=(
        "Take the parameters one by one and ask two questions. Is it replicated? And "
        "if so: do all ranks do the same with it, on the same tokens and heads?",
        "What is sharded has one owner, and needs no sum. What is replicated, and used alike on "
        "all tokens, has its complete gradient on every rank: a sum makes it too large. What is "
        "left?",
        "One of them has nothing to do with the tokens being sharded: every rank uses it on all "
        "tokens, but with its own heads only.",
        "One message: torch.cat of the flattened ones, a sum, `split` by their sizes, `view_as`.",
    ),
)
