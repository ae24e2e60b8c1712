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
from course_lib.classroom.checks.lesson_01 import trial
from course_lib.classroom.checks.lesson_01.pieces import (
    SAYS,
    listed,
    look_at_results,
    look_at_traffic,
    look_at_values,
)
from course_lib.classroom.checks.lesson_01.trial import Call
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed
from course_lib.classroom.checks.words import Page

_STOPPED = ("raised", "deadlock", "no room")


def judge_uneven(answer: Answer, judge: Judge) -> None:
    """Try all_gather_uneven; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    chance = random.Random(seed)
    one, (few, some) = 3 + seed % 4, sorted(chance.sample(range(4, 40, 4), 2))
    many = 2305 + 2 * (seed % 100)  # odd: more than a byte holds, or a narrow float
    apart = chance.sample([few, some, many], 3)
    even = [call for m in (THREE, TWO) for call in _try(answer, judge, m, [one] * len(m), seed)]
    look_at_values(answer, even)
    uneven, empty = [], []
    try:
        for case in ((THREE, apart), (TWO, [few, many])):
            uneven += _try(answer, judge, *case, seed, "int64")
    except Finding as finding:
        _refuse_lengths(finding, even)
    look_at_values(answer, uneven)
    try:
        for case in ((THREE, [some, 0, few]), (TWO, [0, many])):
            empty += _try(answer, judge, *case, seed, "float32")
    except Finding as finding:
        if finding.name not in _STOPPED or trial.of_two_dtypes(finding):
            raise
        raise SAYS("empty piece", details=trial.details(finding)) from None
    look_at_values(answer, empty)
    for call in uneven + empty + even:
        look_at_traffic(call)
        trial.refuse_overwritten(call.reports, "A piece", call.when)


def _refuse_lengths(finding: Finding, even: list[Call]) -> None:
    """Raise what stops an answer where lengths differ, and does not where they are alike."""
    if finding.name not in _STOPPED or trial.of_two_dtypes(finding):
        raise finding
    for call in even:
        trial.refuse_ready_made(call.reports, "Pieces of one length come out right")
    alone = [all(_sent_pieces_alone(r, call.n) for r in call.reports) for call in even]
    entry = "length of another piece"
    if all(alone):
        entry = "lengths not sent"
    elif all(without for call, without in zip(even, alone, strict=True) if call.number):
        entry = "another second call"
    head = "Pieces of one length come out right, pieces of different lengths do not."
    raise SAYS(entry, head=head, details=trial.details(finding))


def _sent_pieces_alone(report: dict, n: int) -> bool:
    return report["ops"].get("send", 0) < n and set(report["ops"]) <= trial.POINT_TO_POINT


def _try(
    answer: Answer,
    judge: Judge,
    members: list[int],
    lengths: list[int],
    seed: int,
    dtype: str = "float64",
) -> list[Call]:
    """Two calls; in the second the lengths are the same, on other ranks."""
    turned = [lengths, lengths[1:] + lengths[:1]]
    shapes = [[[length] for length in row] for row in turned]
    when = [f"{on(members)} with pieces of {listed(row)} elements" for row in turned]
    try:
        calls = trial.calls(answer, judge, members, shapes, seed, dtype, when, "report_list")
    except Finding as finding:
        if finding.name != "raised" or "the ranks disagree" not in finding.text:
            raise
        raise SAYS("no room", when=when[0], details=trial.details(finding)) from None
    for call in calls:
        look_at_results(call)
    return calls


ALL_GATHER_UNEVEN = Exercise(judge=judge_uneven, **Page("lesson_01/all_gather_uneven").about)
