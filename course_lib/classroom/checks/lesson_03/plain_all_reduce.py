"""`plain_all_reduce` of lesson 03: gradients where a forward sums and autograd sees nothing.

Two graphs on two ranks: one where the sum is used by every rank in its own way, one where all go
on alike. The right numbers and each misreading are worked out by the chain rule.
"""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.classroom.checks.thought import Mistake, Thought, compare

A, C = (1.0, 3.0), (8.0, 16.0)  # graph A: L = c · a / S on each rank, S = the sum of both a
X, W = (2.0, 3.0), (1.0, 2.0)  # graph B: y = the sum of x · w, L = y² / 2
RANKS = (0, 1)
FIELDS = tuple(
    f"{graph}, rank {rank}" for graph in ("A plain", "A right", "B plain") for rank in RANKS
)

_S, _Y = sum(A), sum(x * w for x, w in zip(X, W, strict=True))
DIRECT = tuple(c / _S for c in C)  # ∂L of this rank by its own a, with S held fast
THROUGH = tuple(-c * a / _S**2 for a, c in zip(A, C, strict=True))  # and by S


def _of_a(which: str, through: tuple[float, float]) -> dict[str, float]:
    return {f"A {which}, rank {r}": DIRECT[r] + through[r] for r in RANKS}


def _of_a_both() -> dict[str, float]:
    """What an all-reduce of the two plain gradients of a would give, on each rank."""
    return {f"A right, rank {r}": sum(DIRECT) + sum(THROUGH) for r in RANKS}


def _of_b(factor: float) -> dict[str, float]:
    return {f"B plain, rank {r}": factor * _Y * X[r] for r in RANKS}


ALL = (sum(THROUGH),) * 2
RIGHT = {**_of_a("plain", THROUGH), **_of_a("right", ALL), **_of_b(1)}


def judge_plain(given: Mapping) -> None:
    """Hold the gradients against the chain rule with and without the paths between ranks."""
    none, others = (0.0, 0.0), THROUGH[::-1]
    mistakes = (
        Mistake(
            "nothing through S",
            "You have left the path through S out. This rank's own a is in S too: autograd takes "
            "the sum for the identity, which passes a gradient on, and not for a constant.",
            {**_of_a("plain", none), **_of_a("right", none)},
        ),
        Mistake(
            "as it should be",
            "That is what is right, with the other rank's loss in it. autograd knows of no "
            "message: what the other rank's loss says of this a never comes here.",
            _of_a("plain", ALL),
        ),
        Mistake(
            "the other rank's loss left out",
            "That is what autograd gives. The other rank divides by S as well, and S moves with "
            "this a: what its loss says of S is missing.",
            _of_a("right", THROUGH),
        ),
        Mistake(
            "only the other rank's loss",
            "You have the other rank's path through S, and not this rank's own.",
            {**_of_a("plain", others), **_of_a("right", others)},
        ),
        Mistake(
            "mean",
            "What the two losses say of S adds up; that is their mean.",
            _of_a("right", (sum(THROUGH) / 2,) * 2),
        ),
        Mistake(
            "plain gradients summed",
            "You have summed the two plain gradients. These are gradients of two scalars, one for "
            "each rank's a: to the own one only that is missing which the other rank's loss says "
            "of S.",
            _of_a_both(),
        ),
        Mistake(
            "S of one rank",
            "The value of S is the sum of both, in either version: the message is sent. It is the "
            "way back that is missing.",
            {f"A plain, rank {r}": 0.0 for r in RANKS},
        ),
        Mistake(
            "summed on the way back as well",
            "After the sum both ranks compute one and the same loss, so the complete gradient is "
            "there already. Twice is what an all-reduce whose backward is an all-reduce would "
            "give, as torch's functional one.",
            _of_b(2),
        ),
        Mistake(
            "y of one rank",
            "The value of y is the full sum, on both ranks: the message is sent.",
            {f"B plain, rank {r}": X[r] ** 2 * W[r] for r in RANKS},
        ),
        Mistake(
            "half of it",
            "Each term of a sum has the full gradient of the sum; it is not shared out.",
            _of_b(0.5),
        ),
        Mistake(
            "y's own gradient",
            "That is the gradient of y. w is one step further back: times x.",
            {f"B plain, rank {r}": _Y for r in RANKS},
        ),
        Mistake(
            "no gradient at all",
            "A plain all_reduce cuts nothing off: autograd takes it for the identity, and the "
            "gradient passes.",
            {f"B plain, rank {r}": 0.0 for r in RANKS},
        ),
    )
    compare(given, RIGHT, mistakes, apart=True)


PLAIN = Thought(
    name="plain_all_reduce",
    title="What autograd makes of a plain all_reduce",
    points=3,
    fields=FIELDS,
    judge=judge_plain,
    when_right=(
        "autograd takes a plain all_reduce for the identity. Where all ranks go on alike with the "
        "sum, that is g's own backward, and the gradient is right by luck. Where each rank uses "
        "the sum in its own way, it loses what the other ranks' losses say; in A that even turns a "
        "sign round. An all-reduce has two right backwards, like a gather."
    ),
    hints=(
        "Split each gradient in A into paths: a directly, with S held fast, and a through S. There "
        "are two losses, and a is in S for both.",
        "Plain: autograd on rank 0 sees L of rank 0 only, with the right value of S, and takes dS "
        "as if S were a itself plus a constant.",
        "Right: the loss is the sum of both ranks' L. To the plain gradient comes what the other "
        "rank's L says of S.",
        "In B the loss is computed on both ranks, and is one loss. With the identity for a "
        "backward, what comes to x · w on each rank? Is that what the dense net, in one process, "
        "would give?",
    ),
)
