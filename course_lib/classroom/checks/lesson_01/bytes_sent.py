"""`ring_bytes` of lesson 01: what each rank sends in a ring all-reduce, predicted for four n.

The right numbers come from the ledger's closed form; each misreading of the count is one too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from course_lib.classroom.checks.thought import Mistake, Thought, held_against
from course_lib.classroom.checks.words import Words
from course_lib.ledger import forms

RANKS = (2, 3, 4, 8)
B = 600_000 * 4  # float32, in the question

SAYS = Words("""
half of the way: You have the bytes of one round. An all-reduce goes round twice: once until the
  sums are finished, and once more until every rank has them all.
sent and received: You have counted what a rank sends and what it receives. What it receives is what
  its neighbour sends, and is counted there. (Or is it 8 bytes for an element? A float32 has 4.)
all ranks together: That is either a whole tensor in each step, or what all ranks send together:
  which was it? Wanted is what one rank sends, and in a step it sends one chunk of n.
whole tensors: That is the plan from each to each: a full tensor for each of the ranks. On the ring
  a rank sends one chunk in a step, one n-th of it.
a tree: Those are the levels of a tree, up and down, with the full tensor at each. On the ring a
  rank sends one chunk in a step.
upside down: That grows smaller with more ranks: your factor is upside down. How many steps are
  there, and which part of the tensor is sent in each?
one step too many: That is n steps in a round. n−1 are enough in both: a chunk has met every rank
  one step earlier, and need not come home.
the tensor once: That is the whole tensor, whatever n is. It is right for one n only: count the
  steps, and the bytes of the chunk that is sent in each.
one message: Those are the bytes of one message, or of one in each round. How many messages does a
  rank send in a round?
unit: Those are MiB; whole bytes are asked for.
numbers, not bytes: Those are elements. A float32 takes more than one byte.
several ideas: Those are elements, where bytes are asked for; and they are those of one round, where
  an all-reduce goes round twice.
""")


def right(n: int) -> float:
    """The bytes that one of n ranks sends."""
    return forms.all_reduce(n, B)


def _mistakes() -> tuple[Mistake, ...]:
    """What each misreading leads to, for every n."""
    wrong: list[tuple[str, Callable[[int], float]]] = [
        ("half of the way", lambda n: right(n) / 2),
        ("sent and received", lambda n: 2 * right(n)),
        ("all ranks together", lambda n: n * right(n)),
        ("whole tensors", lambda n: (n - 1) * B),
        ("whole tensors", lambda n: n * B),
        ("a tree", lambda n: 2 * math.ceil(math.log2(n)) * B),
        ("upside down", lambda n: 2 * n / (n - 1) * B),
        ("one step too many", lambda n: 2 * B),
        ("one step too many", lambda n: (2 * n - 1) / n * B),
        ("the tensor once", lambda n: B),
        ("one message", lambda n: B / n),
        ("one message", lambda n: 2 * B / n),
        ("unit", lambda n: right(n) / 1024**2),
        ("numbers, not bytes", lambda n: right(n) / 4),
        ("several ideas", lambda n: right(n) / 8),
    ]
    return tuple(Mistake(*SAYS.of(entry), {n: sent(n) for n in RANKS}) for entry, sent in wrong)


RING_BYTES = Thought(
    name="ring_bytes",
    title="Bytes on the ring, predicted",
    points=2,
    fields=RANKS,
    judge=held_against(lambda: {n: right(n) for n in RANKS}, _mistakes),
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
