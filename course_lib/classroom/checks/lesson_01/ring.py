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
from course_lib.classroom.checks.words import Page
from course_lib.layout import cut

SAYS = Page("lesson_01/ring_all_reduce")


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


RING = Exercise(judge=judge_ring, **SAYS.about)
