"""What is wrong with gathered pieces: what they are, where they stand, what moving them cost.

The findings of `all_gather_uneven` in lesson 01, held against the pieces and a ring's budget.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.judge import refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_01 import trial
from course_lib.classroom.checks.lesson_01.trial import Call
from course_lib.classroom.checks.looking import all_near, near, refuse_changed
from course_lib.classroom.checks.words import Page

_LENGTH = 8  # bytes of a length, an int64
_FREE = 8  # bytes by which lengths sent another way may differ, for each pair of ranks
SAYS = Page("lesson_01/pieces")


def look_at_results(call: Call) -> None:
    """Refuse what is no list of pieces at all, and a changed input, whatever the values are."""
    n, when, lengths = call.n, call.when, [len(piece) for piece in call.inputs]
    refuse_none(call.reports, when, "the list of pieces")
    for rank, report in enumerate(call.reports):
        about = {"rank": rank, "when": when, "n": n}
        if report["whole"] is not None:
            raise SAYS("joined into one", shape=report["whole"], **about)
        if not len(report["kinds"]) == len(report["entries"]) == n:
            kinds = ", ".join(report["kinds"][:8]) or "nothing"
            raise SAYS("not a piece of each rank", kind=report["kind"], kinds=kinds, **about)
        if set(report["dtypes"]) != {call.dtype}:
            dtypes = listed(report["dtypes"])
            raise SAYS("another dtype", dtypes=dtypes, dtype=call.dtype, **about)
    refuse_changed(call, "its input piece (a slice of it is a view, in the same memory)")
    longest = max(lengths)
    for report in call.reports:
        if min(lengths) < longest and all(shape == [longest] for shape in report["shapes"]):
            raise SAYS("padding left in", longest=longest, when=when)


def look_at_values(answer: Answer, calls: list[Call]) -> None:
    """Hold what every rank got against the pieces; the first wrong call is explained."""
    wrong = [c for c in calls if not all(all_near(r["entries"], c.inputs) for r in c.reports)]
    if not wrong:
        return
    if all(call.n == 2 for call in wrong):
        refuse_world_numbers(answer, wrong[0].when)
    call = wrong[0]
    trial.refuse_second(call.number > 0, call.when)
    named = {
        "nobody asked": not any(report["ops"] for report in call.reports),
        "one buffer": any(report["one_buffer"] for report in call.reports),
        "order of arrival": any(_turned(call, way) for way in (1, -1)),
        "right for two only": all(c.n == 3 for c in wrong) and any(c.n == 2 for c in calls),
        "wrong pieces": True,
    }
    entry = next(entry for entry, holds in named.items() if holds)
    raise SAYS(entry, evidence=_evidence(call))


def _turned(call: Call, way: int) -> bool:
    """Whether every rank holds all pieces, but counted from itself on."""
    steps, pieces = range(call.n), call.inputs
    return all(
        all_near(report["entries"], [pieces[(rank + way * step) % call.n] for step in steps])
        for rank, report in enumerate(call.reports)
    )


def _evidence(call: Call) -> str:
    """What the first wrong entry is, where that can be told."""
    rank, entry, found = next(
        (rank, entry, found)
        for rank, report in enumerate(call.reports)
        for entry, found in enumerate(report["entries"])
        if not near(found, call.inputs[entry])
    )
    owner = next((r for r, piece in enumerate(call.inputs) if near(found, piece)), None)
    what = "no rank's piece as a whole" if owner is None else f"the piece of rank {owner}"
    return f"{call.when.capitalize()}, entry {entry} on rank {rank} is {what}."


def look_at_traffic(call: Call) -> None:
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
    about = {"rank": rank, "count": counts[rank], "most": most, "bytes": sent[rank]}
    head = SAYS.of("head", when=call.when, allowed=rightward[rank], **about)[1]
    room = lengths + n * (n - 1) * _FREE
    home = [own[(rank + 1) % n] for rank in range(n)]
    more = [a - b for a, b in zip(sent, rightward, strict=True)]
    last_steps = ((2, [piece + _LENGTH for piece in home]), (1, home), (1, [_LENGTH] * n))
    pairs = list(zip(sent, own, strict=True))
    named = {
        "too many messages": sent[rank] <= rightward[rank],
        "one step too many": any(
            more == bytes_ and all(count == most + extra for count in counts)
            for extra, bytes_ in last_steps
        ),
        "padded": all(0 <= all_ - (n - 1) * max(own) <= room for all_ in sent),
        "straight to everybody": all(0 <= all_ - (n - 1) * mine <= room for all_, mine in pairs),
        "all through one rank": n > 2 and len(over) == 1,
        "over budget": True,
    }
    raise SAYS(next(entry for entry, holds in named.items() if holds), head=head, rank=rank)


def listed(parts: list) -> str:
    """1, 2 and 3."""
    *first, last = map(str, parts)
    return f"{', '.join(first)} and {last}" if first else last
