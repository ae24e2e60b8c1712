"""`ring_all_reduce` of lesson 01: what right means, and how wrong answers are recognised.

An answer is tried on two and on three ranks with fresh numbers, and held against the sum (values)
and against the ring's budget: so many messages, and none longer than a chunk. One that is too long
costs time that shorter ones elsewhere do not give back.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_01 import trial
from course_lib.classroom.checks.lesson_01.trial import Call
from course_lib.classroom.checks.looking import (
    THREE,
    TOLERANCE,
    TWO,
    came_back,
    fresh_seed,
    ideas,
    near,
    refuse_changed,
    refuse_idea,
)
from course_lib.classroom.checks.words import Words
from course_lib.layout import cut

SAYS = Words("""
uneven lengths: Lengths that divide by the number of ranks come out right. {details}
room of another length: Lengths that divide by the number of ranks come out right. Otherwise chunks
  differ: if the receiver makes room as long as what it sends, the chunk that comes may have another
  length.

  {details}
room of another dtype: Room that is made ready has another dtype than what is sent, {when}. Make it
  like x, here {dtype}: x.new_empty(k).

  {details}
wrong shape: Rank {rank} got {got} back {when}; expected is a tensor of shape [{length}] and dtype
  {dtype}, like x.
read too early: {at}, rank {rank} holds values that no rank had: what was in the room for an
  arrival. Was it read before its wait(), or did nothing come?
mean: Every rank has the mean, the sum divided by {n}. An all-reduce here is the sum.
largest: Every rank has the largest of the ranks' values, element by element. Wanted is their sum.
not on every rank: {at} the sum is on rank {have} and not on rank {lack}: that is a reduce. In an
  all-reduce every rank ends with the whole sum.
remainder dropped: Lengths that divide by the number of ranks come out right. {at} the last {rest}
  of each result are wrong: cutting in whole n-ths leaves them out.
one buffer: {at}, chunks {a} and {b} on rank {rank} hold the same numbers. Was one buffer used for
  several arrivals? An arrival that is kept needs room of its own, or the next one overwrites it.
chunks in another order: {at}, each chunk holds the finished sum of some chunk, but not each its
  own. A chunk keeps its number on its way round.
never added: {at}, each chunk holds the numbers of one rank, and no sum has come to it. In the first
  round an arrival is added to what is there; the second begins with the chunk that is finished by
  then.
right for two only: Two ranks come out right and three do not: an index is off. On two, left and
  right are one neighbour, and counting up or down is the same (mod 2). {evidence}
added twice: Some contributions were added more than once. {evidence}
half of the way: Each rank holds the finished sum in one of its {n} chunks and nowhere else: that is
  a reduce-scatter. The finished chunks have yet to go round.
one step too few: On every rank one chunk is not finished. Each round has n−1 steps. {evidence}
wrong values: The results are not the sum. {evidence}
all through one rank: {head} {most} bytes, and one of the others only {least}. {fair} All roads lead
  through rank {rank}: the more ranks, the longer all wait for it.
whole tensors: {head} a whole tensor of {length} elements {count} times, and so does every other.
  {fair} A rank needs the sum, not all tensors.
one step too many: {head} {count} messages instead of {may_send}, which is one step too many
  {where}.
message too long: {head} a message of {longest:g} elements. {fair} That is ⌈{length}/{n}⌉.{asked}
over budget: {head} {count} messages. {fair}
""")


def judge_ring(answer: Answer, judge: Judge) -> None:
    """Try ring_all_reduce; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    part = 4 + seed % 5
    # Lengths that divide come first: what is wrong there is the ring, not the cut.
    even = [(THREE, 3 * part, "float64"), (TWO, 2 * part, "float64")]
    # In the last of these, with fewer elements than ranks, one rank's chunk is empty.
    uneven = [
        (THREE, 3 * part + 1 + seed % 2, "float64"),
        (TWO, 2 * part + 1, "float32"),
        (THREE, 2, "float64"),
    ]
    calls = [call for case in even for call in _try(answer, judge, *case, seed)]
    _look_at_values(answer, calls)
    try:
        more = [call for case in uneven for call in _try(answer, judge, *case, seed)]
    except Finding as finding:
        if finding.name not in ("raised", "deadlock"):
            raise
        if "the ranks disagree" not in finding.text:
            raise SAYS("uneven lengths", details=finding.text) from None
        raise SAYS("room of another length", details=trial.details(finding)) from None
    _look_at_values(answer, more)
    for call in calls + more:
        _look_at_traffic(call)
        trial.refuse_overwritten(call.reports, "The sum", call.when)


def _try(
    answer: Answer, judge: Judge, members: list[int], length: int, dtype: str, seed: int
) -> list[Call]:
    when = f"{on(members)} with {length} elements"
    shapes = [[[length]] * len(members)] * 2
    try:
        calls = trial.calls(answer, judge, members, shapes, seed, dtype, [when] * 2)
    except Finding as finding:
        if not trial.of_two_dtypes(finding):
            raise
        about = {"dtype": dtype, "details": trial.details(finding)}
        raise SAYS("room of another dtype", when=when, **about) from None
    for call in calls:
        refuse_none(call.reports, call.when, "the sum")
        for rank, report in enumerate(call.reports):
            if report["out"] is None:
                about = {"rank": rank, "got": came_back(report), "dtype": dtype}
                raise SAYS("wrong shape", length=length, when=call.when, **about)
        refuse_changed(call, "its input x (a chunk or slice of x is a view of x)")
    return calls


def _look_at_values(answer: Answer, calls: list[Call]) -> None:
    """Hold what every rank got against the sum; of several wrong calls the first is explained."""
    wrong = [c for c in calls if not all(near(report["out"], c.total) for report in c.reports)]
    if not wrong:
        return
    if all(call.n == 2 for call in wrong):
        refuse_world_numbers(answer, wrong[0].when)
    call, three = wrong[0], all(call.n == 3 for call in wrong)
    n, length, at = call.n, len(call.total), call.when.capitalize()
    trial.refuse_second(call.number > 0, call.when)
    results = [report["out"] for report in call.reports]
    for rank, out in enumerate(results):
        if out.isnan().any():  # as the bench fills what torch.empty gives
            raise SAYS("read too early", at=at, rank=rank)
    everywhere = {"mean": call.total / n, "largest": torch.stack(call.inputs).max(0).values}
    known = {entry: [value] * n for entry, value in everywhere.items()}
    refuse_idea(results, ideas(SAYS, known, n=n), call.when)
    right = [_right(call, rank) for rank in range(n)]
    if any(bool(mask.all()) for mask in right):
        have, lack = (
            ", ".join(str(rank) for rank in range(n) if bool(right[rank].all()) is whole)
            for whole in (True, False)
        )
        raise SAYS("not on every rank", at=at, have=have, lack=lack)
    rest = length % n
    if all(len(c.total) % c.n for c in wrong) and all(m[: length - rest].all() for m in right):
        raise SAYS("remainder dropped", at=at, rest=rest)
    _refuse_chunks(call.inputs, results, at)
    evidence = _counted(call)
    finished = _finished(call)
    named = {
        "right for two only": three and any(c.n == 2 for c in calls),
        "added twice": "2 times" in evidence or "3 times" in evidence,
        "half of the way": finished == {1},
        "one step too few": finished == {n - 1},
        "wrong values": True,
    }
    raise SAYS(next(entry for entry, holds in named.items() if holds), n=n, evidence=evidence)


def _right(call: Call, rank: int) -> Tensor:
    """For each element, whether this rank has the sum."""
    total = call.total
    return (call.reports[rank]["out"] - total).abs() <= TOLERANCE * total.abs().max()


def _refuse_chunks(inputs: list[Tensor], results: list[Tensor], at: str) -> None:
    """A Finding where chunks hold what belongs to another chunk, or to one rank."""
    sizes = [size for size in cut(len(inputs[0]), len(inputs)) if size]
    sums, own = torch.stack(inputs).sum(0).split(sizes), [x.split(sizes) for x in inputs]
    chunks, places = [out.split(sizes) for out in results], range(len(sizes))
    for rank, (b, a) in itertools.product(range(len(chunks)), itertools.combinations(places, 2)):
        size = min(sizes[a], sizes[b])
        first, second = chunks[rank][b][:size], chunks[rank][a][:size]
        if size > 1 and first.any() and near(first, second):
            raise SAYS("one buffer", at=at, rank=rank, a=a, b=b)
    if all(any(near(one, right) for right in sums) for row in chunks for one in row):
        raise SAYS("chunks in another order", at=at)
    if all(any(near(row[k], x[k]) for x in own) for row in chunks for k in places):
        raise SAYS("never added", at=at)


def _finished(call: Call) -> set[int]:
    """How many of its chunks each rank has right; what divides is cut in chunks of one length."""
    if len(call.total) % call.n:
        return set()
    done = [_right(call, r).view(call.n, -1).all(1) for r in range(call.n)]  # (chunk,)
    return {int(chunks.sum()) for chunks in done} if torch.stack(done).any(0).all() else set()


def _counted(call: Call) -> str:
    """Whose contributions are counted how often in a wrong piece, where the values show it."""
    sizes = cut(len(call.total), call.n)
    starts = itertools.accumulate(sizes[:-1], initial=0)
    pieces = [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    for rank, piece in itertools.product(range(call.n), pieces):
        if _right(call, rank)[piece].all():
            continue
        at = f"{call.when.capitalize()}, elements {piece.start} to {piece.stop - 1} on rank {rank}"
        out, columns = call.reports[rank]["out"][piece], torch.stack(call.inputs, 1)[piece]
        times = torch.linalg.lstsq(columns, out[:, None]).solution[:, 0]
        if len(out) > call.n and (columns @ times - out).abs().max() > 1e-8:
            return f"{at} are no mixture of these elements of the ranks: chunks were mixed up."
        if len(out) <= call.n or (times - times.round()).abs().max() > 1e-6:
            return f"{at} are wrong."
        return f"{at} {_how_often(times)}, instead of once."
    return ""


def _how_often(times: Tensor) -> str:
    """What was not counted once: by rank, how often."""
    counts = dict(enumerate(map(int, times.round())))
    missing = " and ".join(f"rank {r}" for r, t in counts.items() if t == 0)
    extra = " and ".join(
        f"those of rank {r} {t} times" for r, t in counts.items() if t not in (0, 1)
    )
    parts = [f"do not contain those of {missing} at all"] if missing else []
    return " and ".join([*parts, *([f"count {extra}"] if extra else [])])


def _look_at_traffic(call: Call) -> None:
    """Hold the number of messages and each message's length against the ring's budget."""
    trial.refuse_ready_made(call.reports, "The sum is right")
    n, length, item = call.n, len(call.total), call.total.itemsize
    messages = [report["messages"] for report in call.reports]  # of each rank, the bytes of each
    may_send, chunk = 2 * (n - 1), max(cut(length, n))
    longest = [max(sizes, default=0) for sizes in messages]
    if all(len(sizes) <= may_send for sizes in messages) and max(longest) <= chunk * item:
        return
    sent, counts = [sum(sizes) for sizes in messages], [len(sizes) for sizes in messages]
    smallest = min(min(sizes, default=0) for sizes in messages)
    limit, elements = may_send * chunk * item, max(longest) / item
    steps = set(counts) in ({2 * n - 1}, {2 * n}) and elements <= chunk
    named = {
        "all through one rank": sum(bytes_ > limit for bytes_ in sent) == 1,
        "whole tensors": chunk < length and smallest >= length * item,
        "one step too many": steps,
        "message too long": elements > chunk,
        "over budget": True,
    }
    entry = next(entry for entry, holds in named.items() if holds)
    worst = {"all through one rank": sent, "over budget": counts}.get(entry, longest)
    rank, asked = worst.index(max(worst)), ""
    if elements == length // n + length % n:
        asked = " Is all that does not divide in one chunk?"
    elif elements == 2 * chunk:
        asked = " Or is it as many, in a wider dtype than x has?"
    raise SAYS(
        entry,
        head=f"The sum is right, but not within the budget {call.when}: rank {rank} sends",
        fair=f"Allowed are {may_send} messages a rank, none longer than {chunk} elements.",
        **{"rank": rank, "most": sent[rank], "least": min(sent), "length": length, "n": n},
        **{"count": counts[rank], "may_send": may_send, "longest": elements, "asked": asked},
        where="in each round" if counts[0] == 2 * n else "in one of the rounds",
    )


RING = Exercise(
    name="ring_all_reduce",
    title="A ring all-reduce for any length",
    points=4,
    judge=judge_ring,
    when_right=(
        "The sum on every rank, on two ranks and on three, for lengths that divide and lengths "
        "that do not, in at most 2(n−1) messages of each rank and none longer than ⌈length/n⌉."
    ),
    hints=(
        "Begin with what is new. Where the length does not divide, which of your chunks are "
        "longer, and in which step does a rank send one length and receive another? The receiver "
        "has to know how long the chunk is that comes.",
        "Any length: chunks of ceil(length/n), the last shorter or empty, as "
        "course_lib.layout.cut(length, n) gives them. All ranks cut alike, so a rank can tell "
        "another's chunk by its number: room for an arrival is as long as that chunk.",
        "Two rounds of n−1 steps. In both, each rank sends one chunk to its right neighbour "
        "and receives one from its left. Only what becomes of the arrival differs: in the "
        "first round it is added, in the second it takes the old one's place.",
        "What a rank sends in a step is what it received in the step before. So one number "
        "says which chunk is sent, and it goes down by one (mod n) in each step; what comes has "
        "the number below.",
    ),
)
