"""`all_gather_uneven` of lesson 01: pieces whose lengths only their owners know, within a budget.

An answer is tried with pieces of one length, then of different lengths, then with an empty one, and
held against the pieces, against the messages and against the bytes of a ring.
"""

from __future__ import annotations

import random

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
from course_lib.classroom.checks.lesson_01.pieces import (
    Trial,
    listed,
    look_at_results,
    look_at_traffic,
    look_at_values,
)
from course_lib.classroom.checks.lesson_01.rules import (
    POINT_TO_POINT,
    of_two_dtypes,
    refuse_ready_made,
)
from course_lib.classroom.checks.lesson_01.trial import CALLS, numbers, refuse_overwritten, twice
from course_lib.classroom.checks.looking import fresh_seed

_STOPPED = ("raised", "deadlock", "no room")


def judge_uneven(answer: Answer, judge: Judge) -> None:
    """Try all_gather_uneven; raise the Finding that explains best what is wrong."""
    judge.take(answer, "course_lib.classroom.checks.lesson_01.trial")
    seed = fresh_seed()
    chance = random.Random(seed)
    one, (few, some, many) = 3 + seed % 4, sorted(chance.sample(range(4, 40, 4), 3))
    apart = chance.sample([few, some, many], 3)
    three, two = [0, 1, 2], [1, 2]  # the two are not the notebook's first two: numbers of the group
    even = [t for m in (three, two) for t in _try(answer, judge, m, [one] * len(m), seed)]
    look_at_values(answer, even)
    uneven = _uneven(answer, judge, [(three, apart), (two, [few, many])], seed, even)
    look_at_values(answer, uneven)
    empty = _with_an_empty_one(answer, judge, [(three, [some, 0, few]), (two, [0, many])], seed)
    look_at_values(answer, empty)
    for trial in uneven + empty + even:
        look_at_traffic(trial)
        refuse_overwritten(trial.reports, "A piece", trial.when)


def _uneven(answer: Answer, judge: Judge, cases: list, seed: int, even: list) -> list[Trial]:
    """Lengths that differ; what stops an answer here is nearly always about lengths."""
    try:
        return [t for case in cases for t in _try(answer, judge, *case, seed, "int64")]
    except Finding as finding:
        if finding.name not in _STOPPED or of_two_dtypes(finding):
            raise
        head = "Pieces of one length come out right, pieces of different lengths do not."
        for trial in even:
            refuse_ready_made(trial.reports, head[:-1])
        if all(_sent_pieces_alone(report, trial.n) for trial in even for report in trial.reports):
            raise Finding(
                "lengths not sent",
                f"{head} A rank has to know how long the piece is that comes, and was not told: "
                f"the lengths have to travel first.\n{_details(finding)}",
            ) from None
        later = [(report, trial.n) for trial in even if trial.call for report in trial.reports]
        if all(_sent_pieces_alone(*one) for one in later):
            raise Finding(
                "another second call",
                f"{head} In a second call your function sends no lengths any more, and they may be "
                f"others. What does it keep between calls?\n{_details(finding)}",
            ) from None
        raise Finding(
            "length of another piece",
            f"{head} Is the room that is made ready as long as the piece that comes in that step?\n"
            f"{_details(finding)}",
        ) from None


def _sent_pieces_alone(report: dict, n: int) -> bool:
    return report["ops"].get("send", 0) < n and set(report["ops"]) <= POINT_TO_POINT


def _with_an_empty_one(answer: Answer, judge: Judge, cases: list, seed: int) -> list[Trial]:
    try:
        return [t for case in cases for t in _try(answer, judge, *case, seed, "float32")]
    except Finding as finding:
        if finding.name not in _STOPPED or of_two_dtypes(finding):
            raise
        raise Finding(
            "empty piece",
            "Pieces that hold something come out right, whatever their lengths; an empty one does "
            "not. If it is left out, sender and receiver both have to leave it out; and the rank "
            "whose piece is empty still passes on those of the others.\n"
            f"{_details(finding)}",
        ) from None


def _details(finding: Finding) -> str:
    """What the ranks did, without the general words before it."""
    return finding.text.split("\n", 1)[-1]


def _try(
    answer: Answer,
    judge: Judge,
    members: list[int],
    lengths: list[int],
    seed: int,
    dtype: str = "float64",
) -> list[Trial]:
    """Two calls; in the second the lengths are the same, on other ranks."""
    when = f"{on(members)} with pieces of {listed(lengths)} elements"
    turned = [lengths, lengths[1:] + lengths[:1]]
    shapes = [[[length] for length in row] for row in turned]
    given = (shapes, seed, dtype, "report_list")
    try:
        reports = judge.trial(answer, twice, *given, members=members, when=when)
    except Finding as finding:
        if finding.name != "raised" or "the ranks disagree" not in finding.text:
            raise
        raise Finding(
            "no room",
            f"What one rank sends does not fit what another has made ready {when}. Both have to "
            "agree in length and dtype; torch.empty(k) is float32, whatever the piece is.\n"
            f"{_details(finding)}",
        ) from None
    trials = []
    for k, row in enumerate(shapes):
        pieces = [numbers(shape, seed + k, rank, dtype) for rank, shape in enumerate(row)]
        at = f"{on(members)} with pieces of {listed(turned[k])} elements{CALLS[k]}"
        trials.append(Trial(members, pieces, [calls[k] for calls in reports], at, dtype, k))
        look_at_results(trials[-1])
    return trials


ALL_GATHER_UNEVEN = Exercise(
    name="all_gather_uneven",
    title="An all-gather of uneven pieces",
    points=4,
    judge=judge_uneven,
    when_right=(
        "Every piece on every rank and in rank order, also an empty one, in at most 2(n−1) "
        "messages. No rank sent a filler or a piece twice: what a rank sends is all pieces but its "
        "right neighbour's, and n−1 lengths. A length costs one α and a few bytes; padding would "
        "have cost bytes on every rank, in every step."
    ),
    hints=(
        "A receive needs room of the right length. Who knows the length of a piece, and how do "
        "the others come to know it?",
        "Two rounds of n−1 steps, each round the second half of the lesson's ring: what came from "
        "the left in one step goes to the right in the next. The first round carries lengths, one "
        "number in a message, the second carries the pieces.",
        "Number what travels by its owner. After k steps, whose length, and whose piece, has just "
        "come in from the left? That number says which entry of the list it is, and how much room "
        "its piece needs.",
        "Room like the piece: `piece.new_empty(k)` has its dtype, and k may be 0. Make a new one "
        "for each arrival; an empty piece may be sent like any other.",
    ),
)
