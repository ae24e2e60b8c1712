"""What is wrong with gathered pieces: what they are, where they stand, what moving them cost.

The findings of `all_gather_uneven` in lesson 01, held against the pieces and a ring's budget.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.judge import refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_01.rules import LENGTH, refuse_changed, refuse_ready_made
from course_lib.classroom.checks.lesson_01.trial import refuse_second
from course_lib.classroom.checks.looking import near

_FREE = 8  # bytes by which lengths sent another way may differ, for each pair of ranks


class Trial(NamedTuple):
    """One call of the learner's function on a group, and what it gave on each rank."""

    members: list[int]
    pieces: list[Tensor]
    reports: list[dict]
    when: str
    dtype: str
    call: int

    @property
    def n(self) -> int:
        return len(self.members)

    @property
    def item(self) -> int:
        return getattr(torch, self.dtype).itemsize

    @property
    def lengths(self) -> list[int]:
        return [len(piece) for piece in self.pieces]

    @property
    def right(self) -> bool:
        return not self.wrong_entry()

    def wrong_entry(self) -> tuple[int, int] | None:
        """The first rank that has a wrong entry, and which."""
        for rank, report in enumerate(self.reports):
            for entry, piece in enumerate(self.pieces):
                if not near(report["entries"][entry], piece):
                    return rank, entry
        return None


def look_at_results(trial: Trial) -> None:
    """Refuse what is no list of pieces at all, and a changed input, whatever the values are."""
    n, when = trial.n, trial.when
    refuse_none(trial.reports, when, "the list of pieces")
    for rank, report in enumerate(trial.reports):
        if report["whole"] is not None:
            raise Finding(
                "joined into one",
                f"Rank {rank} got one tensor of shape {report['whole']} back {when}; expected is "
                f"a list of {n} tensors. Once joined, no rank can tell where a piece ends.",
            )
        if not len(report["kinds"]) == len(report["entries"]) == n:
            kinds = ", ".join(report["kinds"][:8]) or "nothing"
            raise Finding(
                "not a piece of each rank",
                f"Rank {rank} got a {report['kind']} back {when} that holds {kinds}; expected is "
                f"a list of {n} tensors, one for each rank, its own among them.",
            )
        if any(dtype != trial.dtype for dtype in report["dtypes"]):
            raise Finding(
                "another dtype",
                f"Rank {rank} got pieces of dtype {listed(report['dtypes'])} back {when}; a piece "
                f"keeps the dtype that its owner gave it, here {trial.dtype}.",
            )
    refuse_changed(trial.reports, "piece", when)
    longest = [max(trial.lengths)]
    if min(trial.lengths) < max(trial.lengths):
        for report in trial.reports:
            if all(shape == longest for shape in report["shapes"]):
                raise Finding(
                    "padding left in",
                    f"Every piece came back {longest[0]} elements long {when}: as long as the "
                    "longest. What was added to fill the others up is not theirs.",
                )


def look_at_values(answer: Answer, trials: list[Trial]) -> None:
    """Hold what every rank got against the pieces."""
    wrong = [trial for trial in trials if not trial.right]
    if not wrong:
        return
    if all(trial.n == 2 for trial in wrong):
        refuse_world_numbers(answer, wrong[0].when)
    trial = wrong[0]
    refuse_second(trial.call > 0, trial.when)
    evidence = _evidence(trial)
    if not any(report["ops"] for report in trial.reports):
        raise Finding(
            "nobody asked",
            "No rank sent or received anything, and without a message no rank can know what the "
            f"others hold. {evidence}",
        )
    if any(report["one_buffer"] for report in trial.reports):
        raise Finding(
            "one buffer",
            "Several entries of the list are the same memory: each arrival overwrote the one "
            f"before. Every piece needs room of its own. {evidence}",
        )
    for way in (1, -1):
        if all(_turned(trial, rank, way) for rank in range(trial.n)):
            raise Finding(
                "order of arrival",
                "All pieces are there, in the order in which they came: each rank's own first. "
                f"Entry r of the list has to be rank r's piece, on every rank. {evidence}",
            )
    if all(t.n == 3 for t in wrong) and any(t.n == 2 for t in trials):
        raise Finding(
            "right for two only",
            "Two ranks come out right and three do not: among two, the only other rank is both "
            f"neighbours at once, and one step reaches every rank. {evidence}",
        )
    raise Finding("wrong pieces", f"Not every piece is where it should be. {evidence}")


def _turned(trial: Trial, rank: int, way: int) -> bool:
    """Whether a rank holds all pieces, but counted from itself on."""
    entries = trial.reports[rank]["entries"]
    pieces = [trial.pieces[(rank + way * step) % trial.n] for step in range(trial.n)]
    return all(near(entry, piece) for entry, piece in zip(entries, pieces, strict=True))


def _evidence(trial: Trial) -> str:
    """What the first wrong entry is, where that can be told."""
    rank, entry = trial.wrong_entry()
    found = trial.reports[rank]["entries"][entry]
    owner = next((r for r, piece in enumerate(trial.pieces) if near(found, piece)), None)
    what = "no rank's piece as a whole" if owner is None else f"the piece of rank {owner}"
    return f"{trial.when.capitalize()}, entry {entry} on rank {rank} is {what}."


def look_at_traffic(trial: Trial) -> None:
    """Hold messages and bytes against the ring's budget."""
    n, when = trial.n, trial.when
    refuse_ready_made(trial.reports, "The pieces are right")
    sent = [report["bytes"] for report in trial.reports]
    messages = [report["ops"].get("send", 0) for report in trial.reports]
    own = [length * trial.item for length in trial.lengths]
    lengths = (n - 1) * LENGTH
    may_send = [sum(own) - own[(rank + 1) % n] + lengths for rank in range(n)]
    leftward = [sum(own) - own[rank - 1] + lengths for rank in range(n)]
    few = max(messages) <= 2 * (n - 1)
    if few and all(bytes_ <= most for bytes_, most in zip(sent, leftward, strict=True)):
        return  # the ring turned round: each piece goes as often over a wire
    over = [
        rank for rank in range(n) if sent[rank] > may_send[rank] or messages[rank] > 2 * (n - 1)
    ]
    if not over:
        return
    rank = over[0]
    head = (
        f"The pieces are right, but not within the budget {when}: rank {rank} sends "
        f"{messages[rank]} messages, {sent[rank]} bytes; allowed are {2 * (n - 1)} messages and "
        f"{may_send[rank]} bytes."
    )
    if sent[rank] <= may_send[rank]:
        raise Finding(
            "too many messages",
            f"{head} The bytes are right; each message costs an α of its own. One for a length and "
            "one for a piece are enough.",
        )
    _refuse_last_step(trial, messages, [a - b for a, b in zip(sent, may_send, strict=True)], head)
    room = lengths + n * (n - 1) * _FREE
    if all(0 <= bytes_ - (n - 1) * max(own) <= room for bytes_ in sent):
        raise Finding(
            "padded",
            f"{head} Every rank sends pieces as long as the longest, whatever they hold: what "
            "fills them up is sent as well. The lengths are known; send that much.",
        )
    if all(0 <= bytes_ - (n - 1) * mine <= room for bytes_, mine in zip(sent, own, strict=True)):
        raise Finding(
            "straight to everybody",
            f"{head} Each rank sends its own piece {n - 1} times, so the rank with the longest "
            "piece sends the most and all wait for it. On a ring a piece leaves its owner once, "
            "and the others pass it on.",
        )
    if n > 2 and len(over) == 1:
        raise Finding(
            "all through one rank",
            f"{head} The others send little: all roads lead through rank {rank}. The more ranks, "
            "the longer all wait for it.",
        )
    raise Finding("over budget", f"{head} Is a piece, or a length, sent again that was there?")


def _refuse_last_step(trial: Trial, messages: list[int], more: list[int], head: str) -> None:
    """A Finding where every rank goes on until its own length or piece has come home to it."""
    n = trial.n
    going_home = [trial.lengths[(rank + 1) % n] * trial.item for rank in range(n)]
    for extra, too_much in (
        (2, [piece + LENGTH for piece in going_home]),
        (1, going_home),
        (1, [LENGTH] * n),
    ):
        if more == too_much and all(count == 2 * (n - 1) + extra for count in messages):
            raise Finding(
                "one step too many",
                f"{head} n−1 steps are enough in a round; the n-th brings each rank its own home.",
            )


def listed(parts: list) -> str:
    """1, 2 and 3."""
    *first, last = map(str, parts)
    return f"{', '.join(first)} and {last}" if first else last
