"""`all_gather_uneven` of lesson 01: pieces whose lengths only their owners know, within a budget.

Tried with pieces of one length, then of different lengths, then with an empty one.
"""

from __future__ import annotations

import random

from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on, refuse_none
from course_classroom.judge.looking import (
    THREE,
    TWO,
    alike,
    all_alike,
    all_near,
    fresh_seed,
    near,
    refuse_changed,
)
from course_classroom.judge.words import Page
from course_lessons.lesson_00 import trial
from course_lessons.lesson_00.trial import Call, listed, told

_LENGTH = 8  # bytes of a length, an int64
_FREE = 8  # bytes by which lengths sent another way may differ, for each pair of ranks
SAYS = Page(__file__, "all_gather_uneven")


def judge_uneven(answer: Answer, judge: Judge) -> None:
    """Try all_gather_uneven; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    chance = random.Random(seed)
    one, (few, some) = 3 + seed % 4, sorted(chance.sample(range(4, 40, 4), 2))
    many = 2305 + 2 * (seed % 100)  # odd: more than a byte holds, or a narrow float
    apart = chance.sample([few, some, many], 3)

    def tried(members: list[int], lengths: list[int], dtype: str = "float64") -> list[Call]:
        """Two calls; in the second the lengths are the same, on other ranks."""
        rows = [lengths, lengths[1:] + lengths[:1]]
        shapes = [[[length] for length in row] for row in rows]
        when = [f"{on(members)} with pieces of {listed(row)} elements" for row in rows]
        given = (members, shapes, seed, dtype, when, "report_list")
        with told(SAYS, "no room", trial.of_two_lengths, when=when[0]):
            calls = trial.calls(answer, judge, *given)
        for call in calls:
            _look_at_results(call)
        return calls

    even = tried(THREE, [one] * 3) + tried(TWO, [one] * 2)
    _look_at_values(even)
    try:
        uneven = tried(THREE, apart, "int64") + tried(TWO, [few, many], "bfloat16")
    except Finding as finding:
        _refuse_lengths(finding, even)
    _look_at_values(uneven)
    with told(SAYS, "empty piece", _stopped):
        empty = tried(THREE, [some, 0, few], "float32") + tried(TWO, [0, many], "float32")
    _look_at_values(empty)
    for call in uneven + empty + even:
        _look_at_traffic(call)
        trial.refuse_overwritten(call.reports, "A piece", call.when)


def _stopped(finding: Finding) -> bool:
    stopped = trial.broke_off(finding) or finding.name == "no room"
    return stopped and not trial.of_two_dtypes(finding)


def _refuse_lengths(finding: Finding, even: list[Call]) -> None:
    """Raise what stops an answer where lengths differ, and does not where they are alike."""
    if not _stopped(finding):
        raise finding
    for call in even:
        trial.refuse_ready_made(call.reports, "Pieces of one length come out right")
    alone = [max(r["ops"].get("send", 0) for r in call.reports) < call.n for call in even]
    named = {
        "lengths not sent": all(alone),
        "another second call": all(alone[1::2]),
        "length of another piece": True,
    }
    SAYS.refuse(named, details=finding.text.split("\n", 1)[-1])


def _look_at_results(call: Call) -> None:
    """Refuse what is no list of pieces at all, and a changed input, whatever the values are."""
    n, when, lengths = call.n, call.when, [len(piece) for piece in call.inputs]
    refuse_none(call.reports, when, "the list of pieces")
    looks = {
        "joined into one": lambda r: r["whole"] is not None,
        "not a piece of each rank": lambda r: not len(r["kinds"]) == len(r["entries"]) == n,
        "another dtype": lambda r: set(r["dtypes"]) != {call.dtype},
    }
    SAYS.refuse_each(call.reports, looks, when=when, n=n, dtype=call.dtype)
    refuse_changed(call, "its input piece (a slice of it is a view, in the same memory)")
    longest = max(lengths)
    filled = any(all(shape == [longest] for shape in r["shapes"]) for r in call.reports)
    SAYS.refuse({"padding left in": filled and min(lengths) < longest}, longest=longest, when=when)


def _look_at_values(calls: list[Call]) -> None:
    """Hold what every rank got against the pieces; the first wrong call is explained."""
    wrong = [c for c in calls if not all(all_near(r["entries"], c.inputs) for r in c.reports)]
    if not wrong:
        return
    call = wrong[0]
    trial.refuse_second(call.number > 0, call.when)
    named = {
        "nobody asked": not any(report["ops"] for report in call.reports),
        "one buffer": any(report["one_buffer"] for report in call.reports),
        "order of arrival": any(_turned(call, way) for way in (1, -1)),
        "right for two only": all(c.n == 3 for c in wrong) and any(c.n == 2 for c in calls),
        "wrong pieces": True,
    }
    rank, entry, found = next(
        (rank, entry, found)
        for rank, report in enumerate(call.reports)
        for entry, found in enumerate(report["entries"])
        if not near(found, call.inputs[entry])
    )
    owners = [f"the piece of rank {r}" for r, one in enumerate(call.inputs) if alike(found, one)]
    what = [*owners, "no rank's piece as a whole"][0]
    SAYS.refuse(named, evidence=f"Entry {entry} on rank {rank} is {what} ({call.when}).")


def _turned(call: Call, way: int) -> bool:
    """Whether every rank holds all pieces, but counted from itself on."""
    steps, pieces = range(call.n), call.inputs
    return all(
        all_alike(report["entries"], [pieces[(rank + way * step) % call.n] for step in steps])
        for rank, report in enumerate(call.reports)
    )


def _look_at_traffic(call: Call) -> None:
    """Hold messages and bytes against the ring's budget."""
    n, reports = call.n, call.reports
    trial.refuse_ready_made(reports, "The pieces are right")
    sent = [report["bytes"] for report in reports]
    counts = [report["ops"].get("send", 0) for report in reports]
    own, most, lengths = [piece.nbytes for piece in call.inputs], 2 * (n - 1), (n - 1) * _LENGTH
    # On a ring turned round it is the left neighbour's piece that is not passed on.
    rightward, leftward = (
        [sum(own) - own[(rank + way) % n] + lengths for rank in range(n)] for way in (1, -1)
    )
    if max(counts) <= most and all(a <= b for a, b in zip(sent, leftward, strict=True)):
        return
    over = [rank for rank in range(n) if sent[rank] > rightward[rank] or counts[rank] > most]
    if not over:
        return
    rank = over[0]
    more = [bytes_ - allowed for bytes_, allowed in zip(sent, rightward, strict=True)]
    home = [own[(rank + 1) % n] for rank in range(n)]
    last_steps = ((2, [piece + _LENGTH for piece in home]), (1, home), (1, [_LENGTH] * n))
    room = lengths + n * (n - 1) * _FREE

    def all_send(pieces: list[int]) -> bool:
        """Whether each rank sends n−1 times a piece of such bytes, and lengths."""
        beside = [bytes_ - (n - 1) * piece for bytes_, piece in zip(sent, pieces, strict=True)]
        return min(beside) >= 0 and max(beside) <= room

    named = {
        "too many messages": sent[rank] <= rightward[rank],
        "one step too many": any(
            more == bytes_ and set(counts) == {most + extra} for extra, bytes_ in last_steps
        ),
        "padded": all_send([max(own)] * n),
        "straight to everybody": all_send(own),
        "all through one rank": n > 2 and len(over) == 1,
        "over budget": True,
    }
    about = {"rank": rank, "count": counts[rank], "most": most, "bytes": sent[rank]}
    head = SAYS.of("head", when=call.when, allowed=rightward[rank], **about)[1]
    SAYS.refuse(named, head=head)


ALL_GATHER_UNEVEN = Exercise(judge=judge_uneven, **SAYS.about)
