"""`tree_or_ring` of lesson 01: two ways to sum, each a count of α and a count of tensors, and where
their times meet.

A wrong idea is another count; what it would give follows from the same formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_lib.classroom.checks.thought import Mistake, Thought, counted, held_against
from course_lib.classroom.checks.words import Words

RANKS, STEPS, LEVELS = 64, 2 * 63, 2 * 6  # steps of both rounds, levels up and down
MEET = "they meet at"
FIELDS = ("ring 1 kB", "tree 1 kB", "ring 100 MB", "tree 100 MB", MEET)

SAYS = Words("""
whole tensors round the ring: On the ring a message is a chunk, one n-th of the tensor. On the tree
  it is all of it.
chunks up the tree: On the tree every message is the whole tensor; only the ring cuts it into n.
one α for all: Each message costs its own latency α, on the ring and on the tree, up and down. They
  come one after the other: a step cannot begin before the message of the step before has arrived.
half of the way: That ends with the sum on one rank, or with a chunk of it on each. It has to come
  back to all: the tree is climbed and descended, the ring has two rounds of n−1 steps.
a message to each: A tree is no queue: in one step many pairs talk at once. Count levels, not ranks.
one step too many: That is n steps in each round of the ring. n−1 are enough.
halved at each level: You have halved the message from level to level. On this tree the number of
  ranks halves; each message is the full tensor.
a level too many: From 64 partial sums to one it halves six times: count the steps between the
  levels.
another logarithm: Count the levels with the logarithm to the base 2: how often can 64 be halved?
latency left out: The messages' latency is missing: every message costs an α beside its bytes.
ring and tree swapped: You have the tree's time for the ring, and the ring's for the tree.
sizes swapped: You have the time of 100 MB for 1 kB, and that of 1 kB for 100 MB.
unit #1: That is the time of 100 kB, or with an α of 30 ms. Asked for are 100 MB and 30 µs.
unit #2: Times are asked for in milliseconds and the size in kB; these are seconds, or bytes.
bits: The rate is given in bytes per second; what you have takes it for bits.
seconds: Those are seconds; milliseconds are asked for.
powers of two: Here 1 kB is 1,000 bytes, 1 MB a million and 1 GB a billion, as the makers of links
  count.
α over β: That is where one message spends half of its time on α. Ring and tree send different
  numbers of messages: set the two complete times equal.
half of the equation: Ring and tree both have α's and bytes. Bring the α's of the two to one side
  and the bytes of the two to the other: what changes sides is subtracted.
""")


@dataclass(frozen=True)
class Costs:
    """T = messages · α + tensors · B · β, for the ring and for the tree."""

    ring: tuple[float, float] = (STEPS, STEPS / RANKS)  # messages, tensors
    tree: tuple[float, float] = (LEVELS, LEVELS)
    small: float = 1e3  # bytes
    large: float = 100e6
    alpha: float = 30e-6
    rate: float = 10e9  # bytes in a second

    def answers(self) -> dict[str, float]:
        """Times in ms, and the size in kB at which the two are alike."""
        found = [self._ms(*way, size) for size in (self.small, self.large) for way in self._ways()]
        alphas, tensors = (a - b for a, b in zip(*self._ways(), strict=True))
        return dict(zip(FIELDS, (*found, self.size(alphas, -tensors or math.nan)), strict=True))

    def _ways(self) -> tuple:
        return self.ring, self.tree

    def _ms(self, messages: float, tensors: float, size: float) -> float:
        return 1e3 * (messages * self.alpha + tensors * size / self.rate)

    def size(self, messages: float, tensors: float) -> float:
        """The size, in kB, at which so many α are as long as so many tensors."""
        return messages * self.alpha * self.rate / tensors / 1e3


RIGHT = Costs()


def _mistakes() -> tuple[Mistake, ...]:
    """What each misreading leads to: other counts, another unit, half of the equation."""
    sent, times = STEPS / RANKS, RIGHT.answers()
    meet = times.pop(MEET)
    seconds = {name: value / 1e3 for name, value in times.items()}
    half = {"ring": (STEPS / 2, sent / 2), "tree": (6, 6)}
    logs = (math.log(RANKS), math.log10(RANKS))
    heights = [2 * height for log in logs for height in (log, math.ceil(log))]
    changed: list[tuple[str, dict]] = [
        ("whole tensors round the ring", {"ring": (STEPS, STEPS)}),
        ("chunks up the tree", {"tree": (LEVELS, LEVELS / RANKS)}),
        ("one α for all", {"ring": (1, sent), "tree": (1, LEVELS)}),
        *(("one α for all", {"tree": (alphas, LEVELS)}) for alphas in (1, 2)),
        ("half of the way", half),
        *(("half of the way", {way: half[way]}) for way in half),
        ("half of the way", {"ring": (RANKS, 1)}),
        ("a message to each", {"tree": (STEPS, STEPS)}),
        ("one step too many", {"ring": (STEPS + 2, 2)}),
        ("halved at each level", {"tree": (LEVELS, sent)}),
        ("a level too many", {"tree": (LEVELS + 2, LEVELS + 2)}),
        *(("another logarithm", {"tree": (height, height)}) for height in heights),
        ("latency left out", {"alpha": 0}),
        ("ring and tree swapped", {"ring": RIGHT.tree, "tree": RIGHT.ring}),
        ("sizes swapped", {"small": RIGHT.large, "large": RIGHT.small}),
        ("unit #1", {"large": RIGHT.large / 1e3}),
        ("unit #1", {"alpha": 1e3 * RIGHT.alpha}),
        ("bits", {"rate": RIGHT.rate / 8}),
        ("powers of two", {"small": 1024, "large": 100 * 1024**2}),
        ("powers of two", {"rate": 10 * 1024**3}),
    ]
    meetings = [
        ("α over β", 1, 1),
        ("half of the equation", STEPS, LEVELS),
        ("half of the equation", STEPS - LEVELS, LEVELS),
        ("half of the equation", STEPS, LEVELS - sent),
        ("half of the equation", STEPS - LEVELS, LEVELS + sent),
        ("half of the equation", STEPS + LEVELS, LEVELS - sent),
    ]
    return (
        *(found for entry, counts in changed for found in counted(SAYS, RIGHT, {entry: counts})),
        Mistake(*SAYS.of("seconds"), seconds),
        Mistake(*SAYS.of("unit #2"), {**seconds, MEET: 1e3 * meet}),
        Mistake(*SAYS.of("powers of two"), {MEET: meet / 1.024}),
        *(Mistake(*SAYS.of(entry), {MEET: RIGHT.size(*sides)}) for entry, *sides in meetings),
    )


TREE_OR_RING = Thought(
    name="tree_or_ring",
    title="A tree or a ring",
    points=3,
    fields=FIELDS,
    judge=held_against(RIGHT.answers, _mistakes, apart=True),
    when_right=(
        "Small tensors wait for latency, and the tree has few α; large ones wait for bandwidth, "
        "and the ring sends less than two tensors whatever n is. NCCL has both and chooses by "
        "size. But its tree is pipelined, and a double one: T ≈ 2 log2(n) · α + 2 β · B. That has "
        "the tree's latency and the ring's bandwidth, so it does not lose at 100 MB as this one "
        "does."
    ),
    hints=(
        "Write both times as (a number) · α + (a number) · B · β, and find the four numbers. "
        "Nothing else depends on n.",
        "The lesson counted the ring: how many messages, and how many bytes in each? On the tree, "
        "how many levels are there between 64 ranks and one, and how often is each passed?",
        "Before you put numbers in, compare α with the time of one message's bytes. For 1 kB one "
        "of the two hardly counts, for 100 MB on the tree it is the other.",
        "Where they meet, the two times are equal. Bring the α's to one side and the bytes to the "
        "other: what remains is one number of α's and one number of tensors.",
    ),
)
