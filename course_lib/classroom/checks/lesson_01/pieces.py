"""What is wrong with gathered pieces: what they are, where they stand, what moving them cost.

The findings of `all_gather_uneven` in lesson 01, held against the pieces and a ring's budget.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.judge import refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_01 import trial
from course_lib.classroom.checks.lesson_01.trial import Call
from course_lib.classroom.checks.looking import all_near, near, refuse_changed
from course_lib.classroom.checks.words import Words

_LENGTH = 8  # bytes of a length, an int64
_FREE = 8  # bytes by which lengths sent another way may differ, for each pair of ranks
SAYS = Words("""
no room: What one rank sends does not fit what another has made ready {when}. Both have to agree in
  length and dtype; torch.empty(k) is float32, whatever the piece is.

  {details}
lengths not sent: {head} A rank has to know how long the piece is that comes, and was not told: the
  lengths have to travel first.

  {details}
another second call: {head} In a second call your function sends no lengths any more, and they may
  be others. What does it keep between calls?

  {details}
length of another piece: {head} Is the room that is made ready as long as the piece that comes in
  that step? And is a length sent in a dtype that can hold it?

  {details}
empty piece: Pieces that hold something come out right, whatever their lengths; an empty one does
  not. If it is left out, sender and receiver both have to leave it out; and the rank whose piece is
  empty still passes on those of the others.

  {details}
joined into one: Rank {rank} got one tensor of shape {shape} back {when}; expected is a list of {n}
  tensors. Once joined, no rank can tell where a piece ends.
not a piece of each rank: Rank {rank} got a {kind} back {when} that holds {kinds}; expected is a
  list of {n} tensors, one for each rank, its own among them.
another dtype: Rank {rank} got pieces of dtype {dtypes} back {when}; a piece keeps the dtype that
  its owner gave it, here {dtype}.
padding left in: Every piece came back {longest} elements long {when}: as long as the longest. What
  was added to fill the others up is not theirs.
nobody asked: No rank sent or received anything, and without a message no rank can know what the
  others hold. {evidence}
one buffer: Several entries of the list are the same memory: each arrival overwrote the one before.
  Every piece needs room of its own. {evidence}
order of arrival: All pieces are there, in the order in which they came: each rank's own first.
  Entry r of the list has to be rank r's piece, on every rank. {evidence}
right for two only: Two ranks come out right and three do not: among two, one step reaches every
  rank. {evidence}
wrong pieces: Not every piece is where it should be. {evidence}
head: The pieces are right, but not within the budget {when}: rank {rank} sends {count} messages,
  {bytes} bytes; allowed are {most} messages and {allowed} bytes.
too many messages: {head} Each message costs an α: one for a length and one for a piece are enough.
one step too many: {head} n−1 steps are enough in a round; the n-th brings each rank its own home.
padded: {head} Every rank sends pieces as long as the longest. The lengths are known; send that
  much.
straight to everybody: {head} Each rank sends its own piece to every other, so the rank with the
  longest piece sends the most and all wait for it. On a ring a piece leaves its owner once, and the
  others pass it on.
all through one rank: {head} The others send little: the more ranks, the longer all wait for this.
over budget: {head} Is a piece, or a length, sent again that was there?
""")


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
