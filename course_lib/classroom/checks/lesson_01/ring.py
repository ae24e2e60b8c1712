"""`ring_all_reduce` of lesson 01: what right means, and how wrong answers are recognised.

An answer is tried on two and on three ranks with fresh numbers, and held against the sum (values)
and against the ring's budget (messages and bytes, from the ledger).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_01.chunks import refuse_chunks
from course_lib.classroom.checks.lesson_01.ring_budget import look_at_traffic
from course_lib.classroom.checks.lesson_01.rules import of_two_dtypes, refuse_changed
from course_lib.classroom.checks.lesson_01.trial import (
    CALLS,
    numbers,
    refuse_overwritten,
    refuse_second,
    twice,
)
from course_lib.classroom.checks.looking import all_near, fresh_seed, near
from course_lib.layout import cut

TOLERANCE = 1e-10  # float64


class Trial(NamedTuple):
    """One call of the learner's function on a group, and what it gave on each rank."""

    members: list[int]
    inputs: list[Tensor]
    reports: list[dict]
    when: str
    dtype: str = "float64"
    call: int = 0

    @property
    def n(self) -> int:
        return len(self.members)

    @property
    def length(self) -> int:
        return len(self.inputs[0])

    @property
    def total(self) -> Tensor:
        return torch.stack(self.inputs).sum(0)

    def right(self, rank: int) -> Tensor:
        """For each element, whether this rank has the sum."""
        return (self.reports[rank]["out"] - self.total).abs() <= TOLERANCE * self.total.abs().max()

    @property
    def wrong(self) -> bool:
        return not all(near(report["out"], self.total) for report in self.reports)


def judge_ring(answer: Answer, judge: Judge) -> None:
    """Try ring_all_reduce; raise the Finding that explains best what is wrong."""
    judge.take(answer, "course_lib.classroom.checks.lesson_01.trial")
    seed = fresh_seed()
    three, two = [0, 1, 2], [1, 2]  # the two are not the notebook's first two: numbers of the group
    part = 4 + seed % 5
    # Lengths that divide come first: what is wrong there is the ring, not the cut.
    even = [(three, 3 * part, "float64"), (two, 2 * part, "float64")]
    # In the last of these, with fewer elements than ranks, one rank's chunk is empty.
    uneven = [
        (three, 3 * part + 1 + seed % 2, "float64"),
        (two, 2 * part + 1, "float32"),
        (three, 2, "float64"),
    ]
    trials = [trial for case in even for trial in _try(answer, judge, *case, seed)]
    _look_at_values(answer, trials)
    try:
        more = [trial for case in uneven for trial in _try(answer, judge, *case, seed)]
    except Finding as finding:
        if finding.name not in ("raised", "deadlock"):
            raise
        raise _about_lengths(finding) from None
    _look_at_values(answer, more)
    for trial in trials + more:
        look_at_traffic(trial.reports, trial.length, trial.when, getattr(torch, trial.dtype))
        refuse_overwritten(trial.reports, "The sum", trial.when)


def _about_lengths(finding: Finding) -> Finding:
    """What stops an answer only where the chunks differ in length."""
    head = "Lengths that divide by the number of ranks come out right."
    if "the ranks disagree" not in finding.text:
        return Finding("uneven lengths", f"{head} {finding.text}")
    details = finding.text.split("\n", 1)[-1]
    return Finding(
        "room of another length",
        f"{head} Otherwise chunks differ: if the receiver makes room as long as what it sends, the "
        f"chunk that comes may have another length.\n{details}",
    )


def _try(
    answer: Answer, judge: Judge, members: list[int], length: int, dtype: str, seed: int
) -> list[Trial]:
    when = f"{on(members)} with {length} elements"
    shapes = [[[length]] * len(members) for _ in CALLS]
    try:
        reports = judge.trial(answer, twice, shapes, seed, dtype, members=members, when=when)
    except Finding as finding:
        if not of_two_dtypes(finding):
            raise
        raise Finding(
            "room of another dtype",
            f"Room that is made ready has another dtype than what is sent, {when}. It should be "
            f"like x, here {dtype}: x.new_empty(k), or torch.empty(k, dtype=x.dtype).\n"
            f"{finding.text.split(chr(10), 1)[-1]}",
        ) from None
    trials = []
    for k, said in enumerate(CALLS):
        inputs = [numbers([length], seed + k, r, dtype) for r in range(len(members))]
        of_call = [calls[k] for calls in reports]
        trials.append(Trial(members, inputs, of_call, when + said, dtype, k))
        _look_at_results(trials[-1])
    return trials


def _look_at_results(trial: Trial) -> None:
    """Refuse what is no result at all, and a changed input, whatever the values are."""
    refuse_none(trial.reports, trial.when, "the sum")
    for rank, report in enumerate(trial.reports):
        if report["out"] is None:
            got = report["kind"]
            if report["shape"] is not None:
                got = f"a tensor of shape {report['shape']} and dtype {report['dtype']}"
            raise Finding(
                "wrong shape",
                f"Rank {rank} got {got} back {trial.when}; "
                f"expected is a tensor of shape [{trial.length}] and dtype {trial.dtype}, like x.",
            )
    refuse_changed(trial.reports, "x", trial.when)


def _how_often(times: Tensor) -> str:
    """What was not counted once: by rank, how often."""
    counted = dict(enumerate(map(int, times.round())))
    missing = " and ".join(f"rank {r}" for r, t in counted.items() if t == 0)
    extra = " and ".join(
        f"those of rank {r} {t} times" for r, t in counted.items() if t not in (0, 1)
    )
    parts = [f"do not contain those of {missing} at all"] if missing else []
    return " and ".join([*parts, *([f"count {extra}"] if extra else [])])


def _look_at_values(answer: Answer, trials: list[Trial]) -> None:
    wrong = [trial for trial in trials if trial.wrong]
    if not wrong:
        return
    if all(t.n == 2 for t in wrong):
        refuse_world_numbers(answer, wrong[0].when)
    refuse_second(wrong[0].call > 0, wrong[0].when)
    raise _wrong_values(wrong, trials)


def _wrong_values(wrong: list[Trial], trials: list[Trial]) -> Finding:
    trial = wrong[0]
    n, total = trial.n, trial.total
    for rank, report in enumerate(trial.reports):
        if report["out"].isnan().any():  # as the bench fills what torch.empty gives
            return Finding(
                "read too early",
                f"{trial.when.capitalize()}, rank {rank} holds values that no rank had: what was "
                "in the room for an arrival. Was it read before its wait(), or did nothing "
                "come?",
            )
    results = [report["out"] for report in trial.reports]
    if all_near(results, [total / n] * n):
        return Finding(
            "mean",
            f"Every rank has the mean, the sum divided by {n}. An all-reduce here is the sum.",
        )
    largest = torch.stack(trial.inputs).max(0).values
    if all_near(results, [largest] * n):
        return Finding(
            "largest",
            "Every rank has the largest of the ranks' values, element by element. Wanted is their "
            "sum.",
        )
    whole = [bool(trial.right(r).all()) for r in range(n)]
    if any(whole):
        have, lack = (", ".join(str(r) for r in range(n) if whole[r] is w) for w in (True, False))
        return Finding(
            "not on every rank",
            f"{trial.when.capitalize()} the sum is on rank {have} and not on rank {lack}: that is "
            "a reduce. In an all-reduce every rank ends with the whole sum.",
        )
    if all(t.length % t.n for t in wrong) and not _whole_chunks_wrong(trial):
        return Finding(
            "remainder dropped",
            "Lengths that divide by the number of ranks come out right. "
            f"{trial.when.capitalize()} the last {trial.length % n} of each result are wrong: "
            "cutting in whole n-ths leaves them out.",
        )
    refuse_chunks(trial.inputs, results, trial.when)
    evidence = _counted(trial)
    if all(t.n == 3 for t in wrong) and any(t.n == 2 for t in trials):
        return Finding(
            "right for two only",
            "Two ranks come out right and three do not: on two, the neighbour to the left is also "
            "the one to the right, and counting up or down is the same (mod 2): an index is off. "
            f"{evidence}",
        )
    if "2 times" in evidence or "3 times" in evidence:
        return Finding("added twice", f"Some contributions were added more than once. {evidence}")
    finished = _finished(trial)
    if finished == {1}:
        return Finding(
            "half of the way",
            f"Each rank holds the finished sum in one of its {n} chunks, another one on each rank, "
            "and nowhere else: that is a reduce-scatter. The finished chunks have yet to go round.",
        )
    if finished == {n - 1}:
        return Finding(
            "one step too few",
            f"On every rank one chunk is not finished. Each round has n−1 steps. {evidence}",
        )
    return Finding("wrong values", f"The results are not the sum. {evidence}")


def _whole_chunks_wrong(trial: Trial) -> bool:
    """Whether anything is wrong before the remainder."""
    whole = trial.length - trial.length % trial.n
    return not all(trial.right(r)[:whole].all() for r in range(trial.n))


def _finished(trial: Trial) -> set[int]:
    """How many of its chunks each rank has right; what divides is cut in chunks of one length."""
    if trial.length % trial.n:
        return set()
    done = [trial.right(r).view(trial.n, -1).all(1) for r in range(trial.n)]  # (chunk,)
    return {int(chunks.sum()) for chunks in done} if torch.stack(done).any(0).all() else set()


def _counted(trial: Trial) -> str:
    """Whose contributions are counted how often in a wrong piece, where the values show it."""
    for rank, report in enumerate(trial.reports):
        start = 0
        for size in cut(trial.length, trial.n):
            piece = slice(start, start + size)
            start += size
            if trial.right(rank)[piece].all():
                continue
            place = f"elements {piece.start} to {piece.stop - 1} on rank {rank}"
            place = f"{trial.when.capitalize()}, {place}"
            columns = torch.stack([x[piece] for x in trial.inputs], 1)  # (size, n)
            if size <= trial.n:
                return f"{place} are wrong."
            times = torch.linalg.lstsq(columns, report["out"][piece, None]).solution[:, 0]
            if (columns @ times - report["out"][piece]).abs().max() > 1e-8:
                return (
                    f"{place} are no mixture of these elements of the ranks: chunks were mixed up."
                )
            if (times - times.round()).abs().max() > 1e-6:
                return f"{place} are wrong."
            return f"{place} {_how_often(times)}, instead of once."
    return ""


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
