"""`ring_all_reduce` of lesson 01: its right answer, and the recognition of wrong answers.

Results are compared with the sum, and messages with a budget, since long messages cost time.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from course_classroom.judge import looking
from course_classroom.judge.answer import Answer
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on, refuse_none
from course_classroom.judge.looking import THREE, TWO, alike, near
from course_classroom.judge.words import Page
from course_classroom.ranks import agreement
from course_lessons.lesson_00 import trial
from course_lessons.lesson_00.trial import Call, told
from course_lib.layout import cut

SAYS = Page(__file__, "ring_all_reduce")


def judge_ring(answer: Answer, judge: Judge) -> None:
    """Try ring_all_reduce; raise the Finding that explains the error best."""
    judge.take(answer, trial.__name__)
    seed = looking.fresh_seed()
    part = 4 + seed % 5

    def tried(members: list[int], length: int, dtype: str = "float64") -> list[Call]:
        when, shapes = f"{on(members)} with {length} elements", [[[length]] * len(members)] * 2
        with told(SAYS, "buffer of wrong dtype", trial.of_two_dtypes, when=when, dtype=dtype):
            calls = trial.calls(answer, judge, members, shapes, seed, dtype, [when] * 2)
        for call in calls:
            refuse_none(call.reports, call.when, "the sum")
            about = {"when": call.when, "length": length, "dtype": dtype}
            for rank, report in enumerate(call.reports):
                got, lost = looking.came_back(report), report["out"] is None
                SAYS.refuse({"wrong shape": lost}, rank=rank, got=got, **about)
            looking.refuse_changed(call, "its input x (a chunk or slice of x is a view of x)")
        return calls

    # Divisible lengths are first, because errors there come from the ring, not the split.
    calls = tried(THREE, 3 * part) + tried(TWO, 2 * part)
    _look_at_values(calls)
    with (
        told(SAYS, "uneven lengths", trial.broke_off),
        told(SAYS, "buffer of wrong length", trial.of_two_lengths),
    ):
        more = tried(THREE, 3 * part + 1 + seed % 2) + tried(TWO, 2 * part + 1, "float32")
        more += tried(THREE, 2)  # fewer elements than ranks, so one rank's chunk is empty
    _look_at_values(more)
    for call in calls + more:
        _look_at_traffic(call)
        trial.refuse_overwritten(call.reports, "The sum", call.when)


def _look_at_values(calls: list[Call]) -> None:
    """Compare every rank's result with the sum, and explain the first wrong call."""
    wrong = [c for c in calls if not all(near(report["out"], c.total) for report in c.reports)]
    if not wrong:
        return
    call = wrong[0]
    n, when, total = call.n, call.when, call.total
    trial.refuse_second(call.number > 0, when)
    results = [report["out"] for report in call.reports]
    # The bench fills tensors from torch.empty with NaNs.
    early = {"read too early": lambda report: report["out"].isnan().any()}
    SAYS.refuse_each(call.reports, early, when=when)
    gives = {"mean": [total / n] * n, "largest": [torch.stack(call.inputs).max(0).values] * n}
    looking.refuse_idea(results, looking.ideas(SAYS, gives, n=n), when)
    right, rest = [_right(call, rank) for rank in range(n)], len(total) % n
    have = [rank for rank in range(n) if right[rank].all()]
    begun = all(mask[: len(mask) - rest].all() for mask in right)
    named = {
        "not on every rank": have,
        "remainder dropped": begun and all(len(c.total) % c.n for c in wrong),
    }
    SAYS.refuse(named, when=when, have=agreement.ranks(have) if have else "", rest=rest)
    _refuse_chunks(call)
    evidence, finished = _counted(call), _finished(call)
    named = {
        "right for two only": all(c.n == 3 for c in wrong) and any(c.n == 2 for c in calls),
        "added twice": "2 times" in evidence or "3 times" in evidence,
        "only one round": finished == {1},
        "one step too few": finished == {n - 1},
        "wrong values": True,
    }
    SAYS.refuse(named, n=n, when=when, evidence=evidence)


def _right(call: Call, rank: int) -> Tensor:
    """Return a mask of the elements whose sum is right on this rank."""
    off = (call.reports[rank]["out"] - call.total).abs()
    return off <= looking.TOLERANCE * call.total.abs().max()


def _refuse_chunks(call: Call) -> None:
    """Refuse chunks that contain values of a different chunk or of only one rank."""
    sizes = [size for size in cut(len(call.total), call.n) if size]
    rows = [report["out"].split(sizes) for report in call.reports]
    sums, own = call.total.split(sizes), [x.split(sizes) for x in call.inputs]
    twins = [
        f"chunks {a} and {b} on rank {rank}"
        for rank, row in enumerate(rows)
        for (a, one), (b, other) in itertools.combinations(enumerate(row), 2)
        if len(other) > 1 and other.any() and alike(one[: len(other)], other)
    ]
    placed = [(k, chunk) for row in rows for k, chunk in enumerate(row)]
    named = {
        "one buffer": twins,
        "chunks in wrong order": all(any(alike(one, s) for s in sums) for _, one in placed),
        "never added": all(any(alike(one, x[k]) for x in own) for k, one in placed),
    }
    SAYS.refuse(named, when=call.when, twins=" and ".join(twins))


def _finished(call: Call) -> set[int]:
    """Return the set of the ranks' numbers of finished chunks, if n divides the length."""
    if len(call.total) % call.n:
        return set()
    done = torch.stack([_right(call, r).view(call.n, -1).all(1) for r in range(call.n)])
    return set(done.sum(1).tolist()) if done.any(0).all() else set()


def _counted(call: Call) -> str:
    """Describe the ranks whose contributions a wrong chunk counts too often or not at all."""
    sizes = cut(len(call.total), call.n)
    ends = list(itertools.accumulate(sizes))
    rank, start, end = next(
        (rank, end - size, end)
        for rank in range(call.n)
        for size, end in zip(sizes, ends, strict=True)
        if not _right(call, rank)[end - size : end].all()
    )
    out, columns = call.reports[rank]["out"][start:end], torch.stack(call.inputs, 1)[start:end]
    times = torch.linalg.lstsq(columns, out[:, None]).solution[:, 0]
    what = "are wrong"
    if len(out) > call.n and (columns @ times - out).abs().max() > 1e-8:
        what = "are no mixture of these elements of the ranks, so chunks were mixed up"
    elif len(out) > call.n and (times - times.round()).abs().max() <= 1e-6:
        counts = enumerate(map(int, times.round()))
        wrong = [f"those of rank {r} {count} times" for r, count in counts if count != 1]
        what = f"count {' and '.join(wrong)}, instead of once"
    return f"Elements {start} to {end - 1} on rank {rank} {what} ({call.when})."


def _look_at_traffic(call: Call) -> None:
    """Compare the number of messages and each message's length with the ring's budget."""
    trial.refuse_ready_made(call.reports, "The sum is correct")
    n, length, item = call.n, len(call.total), call.total.itemsize
    messages = [report["messages"] for report in call.reports]  # for each rank, the bytes of each
    may_send, chunk = 2 * (n - 1), max(cut(length, n))
    longest = max(max(sizes, default=0) for sizes in messages) / item
    if all(len(sizes) <= may_send for sizes in messages) and longest <= chunk:
        return
    sent, counts = [sum(sizes) for sizes in messages], [len(sizes) for sizes in messages]
    rank, asked = max(range(n), key=lambda r: (sent[r], counts[r])), ""
    if longest == length // n + length % n:
        asked = " Is the remainder of the division in one chunk?"
    elif longest == 2 * chunk:
        asked = " Does it have a wider dtype than x?"
    steps = set(counts) in ({2 * n - 1}, {2 * n}) and longest <= chunk
    whole = all(min(sizes, default=0) >= length * item for sizes in messages)
    named = {
        "all through one rank": sum(bytes_ > may_send * chunk * item for bytes_ in sent) == 1,
        "full tensors": chunk < length and whole,
        "one step too many": steps,
        "message too long": longest > chunk,
        "over budget": True,
    }
    about = {"rank": rank, "count": counts[rank], "may_send": may_send, "bytes": sent[rank]}
    head = SAYS.of("head", when=call.when, chunk=chunk, **about)[1]
    where = "in each round" if counts[0] == 2 * n else "in one of the rounds"
    about |= {"least": min(sent), "length": length, "n": n, "longest": longest}
    SAYS.refuse(named, head=head, where=where, asked=asked, **about)


RING = Exercise(judge=judge_ring, **SAYS.about)
