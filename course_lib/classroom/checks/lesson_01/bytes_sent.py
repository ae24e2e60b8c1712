"""`ring_bytes` of lesson 01: what each rank sends in a ring all-reduce, predicted for four n.

The right numbers come from the ledger's closed form; each misreading of the count is one too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from course_lib.classroom.checks.thought import Mistake, Thought, compare
from course_lib.ledger import forms

RANKS = (2, 3, 4, 8)
NUMBERS, ITEM = 600_000, 4  # float32, in the question
PAYLOAD = NUMBERS * ITEM


def judge_ring_bytes(given: Mapping) -> None:
    """Hold the bytes against the closed form, and against what each misreading leads to."""
    mistakes = (
        _mistake(
            "half of the way",
            "You have the bytes of one round. An all-reduce goes round twice: once until the sums "
            "are finished, and once more until every rank has them all.",
            lambda n: forms.reduce_scatter(PAYLOAD, PAYLOAD // n),
        ),
        _mistake(
            "sent and received",
            "You have counted what a rank sends and what it receives. What it receives is what "
            "its neighbour sends, and is counted there. (Or is it 8 bytes for an element? A "
            "float32 has 4.)",
            lambda n: 2 * forms.all_reduce(n, PAYLOAD),
        ),
        _mistake(
            "all ranks together",
            "That is either a whole tensor in each step, or what all ranks send together: which "
            "was it? Wanted is what one rank sends, and in a step it sends one chunk of n.",
            lambda n: n * forms.all_reduce(n, PAYLOAD),
        ),
        _mistake(
            "whole tensors",
            "That is the plan from each to each: a full tensor for each of the other ranks. On the "
            "ring a rank sends one chunk in a step, and there are n chunks.",
            lambda n: (n - 1) * PAYLOAD,
        ),
        _mistake(
            "whole tensors",
            "That is n full tensors. On the ring a rank sends one chunk in a step, one n-th of it.",
            lambda n: n * PAYLOAD,
        ),
        _mistake(
            "a tree",
            "Those are the levels of a tree, up and down, with the full tensor at each. On the "
            "ring a rank sends one chunk in a step.",
            lambda n: 2 * math.ceil(math.log2(n)) * PAYLOAD,
        ),
        _mistake(
            "upside down",
            "That grows smaller with more ranks: your factor is upside down. How many steps are "
            "there, and which part of the tensor is sent in each?",
            lambda n: 2 * n / (n - 1) * PAYLOAD,
        ),
        _mistake(
            "one step too many",
            "That is n steps in each round. A chunk has met every rank one step earlier: it need "
            "not come home.",
            lambda n: 2 * PAYLOAD,
        ),
        _mistake(
            "one step too many",
            "That is n steps in one of the rounds. n−1 are enough in both.",
            lambda n: (2 * n - 1) / n * PAYLOAD,
        ),
        _mistake(
            "the tensor once",
            "That is the whole tensor, whatever n is. It is right for one n only: count the steps, "
            "and the bytes of the chunk that is sent in each.",
            lambda n: PAYLOAD,
        ),
        _mistake(
            "one message",
            "Those are the bytes of one message. How many messages does a rank send?",
            lambda n: PAYLOAD / n,
        ),
        _mistake(
            "one message",
            "That is one message in each round. How many messages does a rank send in a round?",
            lambda n: 2 * PAYLOAD / n,
        ),
        _mistake(
            "unit",
            "Those are MiB; whole bytes are asked for.",
            lambda n: forms.all_reduce(n, PAYLOAD) / 1024**2,
        ),
        _mistake(
            "numbers, not bytes",
            "Those are elements. A float32 takes more than one byte.",
            lambda n: forms.all_reduce(n, NUMBERS),
        ),
        _mistake(
            "several ideas",
            "Those are elements, where bytes are asked for; and they are those of one round, where "
            "an all-reduce goes round twice.",
            lambda n: forms.reduce_scatter(NUMBERS, NUMBERS // n),
        ),
    )
    compare(given, {n: forms.all_reduce(n, PAYLOAD) for n in RANKS}, mistakes)


def _mistake(name: str, text: str, sent: Callable[[int], float]) -> Mistake:
    return Mistake(name, text, {n: sent(n) for n in RANKS})


RING_BYTES = Thought(
    name="ring_bytes",
    title="Bytes on the ring, predicted",
    points=2,
    fields=RANKS,
    judge=judge_ring_bytes,
    when_right=(
        "2(n−1) messages of B/n bytes. From two ranks to eight the bytes grow by three quarters, "
        "the messages sevenfold: what a ring costs on many ranks is latency. The measurement "
        "below counts the first three on real ranks."
    ),
    hints=(
        "First the tensor: how many bytes is a float32, and how many bytes are all of them? "
        "That is B.",
        "How long is one chunk when n ranks share the tensor, and how many chunks does a rank "
        "send before each sum is finished somewhere?",
        "Then the finished sums go round. Does a rank send more, fewer or as many chunks as in "
        "the first round?",
    ),
)
