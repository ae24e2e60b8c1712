"""`all_gather_uneven` of lesson 01: pieces of lengths that only their owners know, within a budget.

The answer is tried with pieces of equal length, of different lengths, and with an empty piece.
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
_FREE = 8  # allowed difference in bytes for other encodings of lengths, for each pair of ranks
SAYS = Page(__file__, "all_gather_uneven")


def judge_uneven(answer: Answer, judge: Judge) -> None:
    """Try all_gather_uneven; raise the Finding that explains the error best."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    chance = random.Random(seed)
    one, (few, some) = 3 + seed % 4, sorted(chance.sample(range(4, 40, 4), 2))
    many = 2305 + 2 * (seed % 100)  # odd, and too large for a byte or a narrow float
    apart = chance.sample([few, some, many], 3)

    def tried(members: list[int], lengths: list[int], dtype: str = "float64") -> list[Call]:
        """Call the answer twice; the second call has the same lengths on different ranks."""
        rows = [lengths, lengths[1:] + lengths[:1]]
        shapes = [[[length] for length in row] for row in rows]
        when = [f"{on(members)} with pieces of {listed(row)} elements" for row in rows]
        given = (members, shapes, seed, dtype, when, "report_list")
        with told(SAYS, "buffer does not fit", trial.of_two_lengths, when=when[0]):
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
    stopped = trial.broke_off(finding) or finding.name == "buffer does not fit"
    return stopped and not trial.of_two_dtypes(finding)


def _refuse_lengths(finding: Finding, even: list[Call]) -> None:
    """Raise a Finding for an answer that stops only if the lengths differ."""
    if not _stopped(finding):
        raise finding
    for call in even:
        trial.refuse_ready_made(call.reports, "Pieces of equal length give the correct result")
    alone = [max(r["ops"].get("send", 0) for r in call.reports) < call.n for call in even]
    named = {
        "lengths not sent": all(alone),
        "wrong second call": all(alone[1::2]),
        "wrong length": True,
    }
    SAYS.refuse(named, details=finding.text.split("\n", 1)[-1])


def _look_at_results(call: Call) -> None:
    """Refuse a changed input or a result that is not a list of pieces, regardless of values."""
    n, when, lengths = call.n, call.when, [len(piece) for piece in call.inputs]
    refuse_none(call.reports, when, "the list of pieces")
    looks = {
        "joined into one": lambda r: r["whole"] is not None,
        "not a piece of each rank": lambda r: not len(r["kinds"]) == len(r["entries"]) == n,
        "wrong dtype": lambda r: set(r["dtypes"]) != {call.dtype},
    }
    SAYS.refuse_each(call.reports, looks, when=when, n=n, dtype=call.dtype)
    refuse_changed(call, "its input piece (a slice of it is a view, in the same memory)")
    longest = max(lengths)
    filled = any(all(shape == [longest] for shape in r["shapes"]) for r in call.reports)
    SAYS.refuse({"padding left in": filled and min(lengths) < longest}, longest=longest, when=when)


def _look_at_values(calls: list[Call]) -> None:
    """Compare every rank's result with the pieces, and explain the first wrong call."""
    wrong = [c for c in calls if not all(all_near(r["entries"], c.inputs) for r in c.reports)]
    if not wrong:
        return
    call = wrong[0]
    trial.refuse_second(call.number > 0, call.when)
    named = {
        "nothing sent": not any(report["ops"] for report in call.reports),
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
    what = [*owners, "not a complete piece of any rank"][0]
    SAYS.refuse(named, evidence=f"Entry {entry} on rank {rank} is {what} ({call.when}).")


def _turned(call: Call, way: int) -> bool:
    """Return True if each rank holds all pieces, but in an order that begins with its own."""
    steps, pieces = range(call.n), call.inputs
    return all(
        all_alike(report["entries"], [pieces[(rank + way * step) % call.n] for step in steps])
        for rank, report in enumerate(call.reports)
    )


def _look_at_traffic(call: Call) -> None:
    """Compare messages and bytes with the ring's budget."""
    n, reports = call.n, call.reports
    trial.refuse_ready_made(reports, "The pieces are correct")
    sent = [report["bytes"] for report in reports]
    counts = [report["ops"].get("send", 0) for report in reports]
    own, most, lengths = [piece.nbytes for piece in call.inputs], 2 * (n - 1), (n - 1) * _LENGTH
    # On a reversed ring, the left neighbour's piece is the one that is not passed on.
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
        """Return True if each rank sends n−1 times the bytes in `pieces`, plus lengths."""
        beside = [bytes_ - (n - 1) * piece for bytes_, piece in zip(sent, pieces, strict=True)]
        return min(beside) >= 0 and max(beside) <= room

    named = {
        "too many messages": sent[rank] <= rightward[rank],
        "one step too many": any(
            more == bytes_ and set(counts) == {most + extra} for extra, bytes_ in last_steps
        ),
        "padded": all_send([max(own)] * n),
        "sends to all ranks": all_send(own),
        "all through one rank": n > 2 and len(over) == 1,
        "over budget": True,
    }
    about = {"rank": rank, "count": counts[rank], "most": most, "bytes": sent[rank]}
    head = SAYS.of("head", when=call.when, allowed=rightward[rank], **about)[1]
    SAYS.refuse(named, head=head)


ALL_GATHER_UNEVEN = Exercise(judge=judge_uneven, **SAYS.about)
