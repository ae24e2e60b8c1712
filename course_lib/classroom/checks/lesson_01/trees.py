"""`tree_or_ring` of lesson 01: two ways to sum, each a count of α and a count of tensors, and where
their times meet.

A wrong idea is a pair of other counts; what it would give follows from the same formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from course_lib.classroom.checks.thought import Mistake, Thought, compare

RANKS, LEVELS = 64, 6  # 2 to the power LEVELS
ALPHA, BYTES_PER_SECOND = 30e-6, 10e9  # in the question
SMALL, LARGE = 1e3, 100e6  # bytes
FIELDS = ("ring 1 kB", "tree 1 kB", "ring 100 MB", "tree 100 MB", "they meet at")


class Cost(NamedTuple):
    """T = messages · α + tensors · B · β: how often a rank waits for an α, and for how many B."""

    messages: float
    tensors: float

    def ms(self, size: float) -> float:
        return 1e3 * (self.messages * ALPHA + self.tensors * size / BYTES_PER_SECOND)


RING = Cost(2 * (RANKS - 1), 2 * (RANKS - 1) / RANKS)
TREE = Cost(2 * LEVELS, 2 * LEVELS)


def _answers(ring: Cost, tree: Cost, small: float = SMALL, large: float = LARGE) -> dict:
    """What an answer that counts like this would be, in ms and kB."""
    found = {
        "ring 1 kB": ring.ms(small),
        "tree 1 kB": tree.ms(small),
        "ring 100 MB": ring.ms(large),
        "tree 100 MB": tree.ms(large),
    }
    if tree.tensors != ring.tensors:  # a wrong count may make them meet below zero
        found["they meet at"] = _meeting(ring.messages - tree.messages, tree.tensors - ring.tensors)
    return found


def _meeting(messages: float, tensors: float) -> float:
    """The size, in kB, at which so many α are as long as so many tensors."""
    return messages * ALPHA * BYTES_PER_SECOND / tensors / 1e3


def judge_tree_or_ring(given: Mapping) -> None:
    """Hold times and size against both formulas, and against what each misreading leads to."""
    compare(given, _answers(RING, TREE), _mistakes(), apart=True)


def _mistakes() -> tuple[Mistake, ...]:
    steps, levels = RING.messages, TREE.messages
    meet = "they meet at"
    right = _answers(RING, TREE)
    times = {name: value for name, value in right.items() if name != meet}
    return (
        Mistake(
            "whole tensors round the ring",
            "On the ring a message is a chunk, one n-th of the tensor. On the tree it is all of "
            "it.",
            _answers(Cost(steps, steps), TREE),
        ),
        Mistake(
            "chunks up the tree",
            "On the tree every message is the whole tensor; only the ring cuts it into n.",
            _answers(RING, Cost(levels, levels / RANKS)),
        ),
        Mistake(
            "one α for all",
            "Each message costs its own latency α, and they come one after the other: a step "
            "cannot begin before the message of the step before has arrived.",
            _answers(Cost(1, RING.tensors), Cost(1, TREE.tensors)),
        ),
        *(
            Mistake(
                "one α for all",
                "Each message costs its own latency α, on the way up and on the way down, on the "
                "ring and on the tree.",
                _answers(*pair),
            )
            for pair in ((RING, Cost(1, levels)), (RING, Cost(2, levels)))
        ),
        Mistake(
            "half of the way",
            "That ends with the sum on one rank, or with a chunk of it on each. It has to come "
            "back to all: there is a second half.",
            _answers(Cost(steps / 2, RING.tensors / 2), Cost(levels / 2, levels / 2)),
        ),
        Mistake(
            "half of the way",
            "The sum climbs the tree and has to come down again: count the levels twice.",
            _answers(RING, Cost(levels / 2, levels / 2)),
        ),
        Mistake(
            "half of the way",
            "One round of the ring finishes the sums, a second brings them to every rank.",
            _answers(Cost(steps / 2, RING.tensors / 2), TREE),
        ),
        Mistake(
            "a message to each",
            "A tree is no queue: in one step many pairs talk at once. Count levels, not ranks.",
            _answers(RING, Cost(steps, steps)),
        ),
        Mistake(
            "one step too many",
            "That is n steps in each round of the ring. n−1 are enough.",
            _answers(Cost(steps + 2, 2), TREE),
        ),
        Mistake(
            "half of the way",
            "That is one round of n steps. The ring has two rounds, of n−1 steps each.",
            _answers(Cost(RANKS, 1), TREE),
        ),
        Mistake(
            "halved at each level",
            "You have halved the message from level to level. On this tree the number of ranks "
            "halves; each message is the full tensor.",
            _answers(RING, Cost(levels, 2 * (RANKS - 1) / RANKS)),
        ),
        Mistake(
            "a level too many",
            "From 64 partial sums to one it halves six times: count the steps between the levels.",
            _answers(RING, Cost(levels + 2, levels + 2)),
        ),
        *(
            Mistake(
                "another logarithm",
                "Count the levels with the logarithm to the base 2: how often can 64 be halved?",
                _answers(RING, Cost(2 * height, 2 * height)),
            )
            for log in (math.log(RANKS), math.log10(RANKS))
            for height in (log, math.ceil(log))
        ),
        Mistake(
            "latency left out",
            "The messages' latency is missing: every message costs an α beside its bytes.",
            {
                k: v
                for k, v in _answers(Cost(0, RING.tensors), Cost(0, levels)).items()
                if k != meet
            },
        ),
        Mistake(
            "ring and tree swapped",
            "You have the tree's time for the ring, and the ring's for the tree.",
            _answers(TREE, RING),
        ),
        Mistake(
            "sizes swapped",
            "You have the time of 100 MB for 1 kB, and that of 1 kB for 100 MB.",
            _answers(RING, TREE, LARGE, SMALL),
        ),
        Mistake(
            "unit",
            "That is the time of 100 kB. 100 MB are a thousand times as much.",
            _answers(RING, TREE, SMALL, LARGE / 1e3),
        ),
        Mistake(
            "unit",
            "You have taken α for 30 ms. It is 30 µs.",
            _answers(Cost(1e3 * steps, RING.tensors), Cost(1e3 * levels, levels)),
        ),
        Mistake(
            "bits",
            "The rate is given in bytes per second; what you have takes it for bits.",
            _answers(Cost(steps, 8 * RING.tensors), Cost(levels, 8 * levels)),
        ),
        Mistake(
            "seconds",
            "Those are seconds; milliseconds are asked for.",
            {name: value / 1e3 for name, value in times.items()},
        ),
        Mistake(
            "unit",
            "Times are asked for in milliseconds and the size in kB; these are seconds, or bytes.",
            {name: value / 1e3 for name, value in times.items()} | {meet: 1e3 * right[meet]},
        ),
        Mistake(
            "powers of two",
            "Here 1 kB is 1,000 bytes and 1 MB a million, as the makers of links count.",
            _answers(RING, TREE, 1024, 100 * 1024**2),
        ),
        Mistake("powers of two", "Here 1 kB is 1,000 bytes.", {meet: right[meet] / 1.024}),
        Mistake(
            "α over β",
            "That is where one message spends half of its time on α. Ring and tree send different "
            "numbers of messages: set the two complete times equal.",
            {meet: _meeting(1, 1)},
        ),
        Mistake(
            "half of the equation",
            "You have set the α of the ring equal to the bytes of the tree. Both have both: the "
            "α's of the two on one side, the bytes of the two on the other.",
            {meet: _meeting(steps, levels)},
        ),
        Mistake(
            "half of the equation",
            "The ring's bytes are missing: subtract them from the tree's.",
            {meet: _meeting(steps - levels, levels)},
        ),
        Mistake(
            "half of the equation",
            "The bytes of ring and tree are added up. Bring them to one side: one is subtracted.",
            {meet: _meeting(steps - levels, levels + RING.tensors)},
        ),
        Mistake(
            "half of the equation",
            "The α's of ring and tree are added up. Bring them to one side: one is subtracted.",
            {meet: _meeting(steps + levels, levels - RING.tensors)},
        ),
        Mistake(
            "half of the equation",
            "The tree's α's are missing: subtract them from the ring's.",
            {meet: _meeting(steps, levels - RING.tensors)},
        ),
    )


TREE_OR_RING = Thought(
    name="tree_or_ring",
    title="A tree or a ring",
    points=3,
    fields=FIELDS,
    judge=judge_tree_or_ring,
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
