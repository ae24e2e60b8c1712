"""`plain_all_reduce` of lesson 03: gradients where a forward sums and autograd sees nothing.

Two graphs on two ranks: one where the sum is used by every rank in its own way, one where all go
on alike. The right numbers and each misreading are worked out by the chain rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.classroom.checks.thought import Mistake, Thought, compare

A, C = (1.0, 3.0), (8.0, 16.0)  # graph A: L = c · a / S on each rank, S = the sum of both a
X, W = (2.0, 3.0), (1.0, 2.0)  # graph B: y = the sum of x · w, L = y² / 2
RANKS = (0, 1)
_GRAPHS = ("A plain", "A right", "B plain")
FIELDS = tuple(f"{graph}, rank {rank}" for graph in _GRAPHS for rank in RANKS)

_S, _Y = sum(A), sum(x * w for x, w in zip(X, W, strict=True))
DIRECT = tuple(c / _S for c in C)  # ∂L of this rank by its own a, with S held fast
THROUGH = tuple(-c * a / _S**2 for a, c in zip(A, C, strict=True))  # and by S


def _of_a(which: str, through: Sequence[float]) -> dict[str, float]:
    return {f"A {which}, rank {r}": DIRECT[r] + through[r] for r in RANKS}


def _of_a_both() -> dict[str, float]:
    """What an all-reduce of the two plain gradients of a would give, on each rank."""
    return {f"A right, rank {r}": sum(DIRECT) + sum(THROUGH) for r in RANKS}


def _of_b(factor: float) -> dict[str, float]:
    return {f"B plain, rank {r}": factor * _Y * X[r] for r in RANKS}


ALL = (sum(THROUGH),) * 2
RIGHT = {**_of_a("plain", THROUGH), **_of_a("right", ALL), **_of_b(1)}


def _slips() -> tuple[Mistake, ...]:
    """What goes wrong on paper, in either graph."""
    away = {
        f"{graph}, rank {r}": RIGHT[f"{graph}, rank {1 - r}"] for graph in _GRAPHS for r in RANKS
    }
    plus = [-t for t in THROUGH]
    return (
        Mistake(
            "ranks exchanged",
            "That is what the other rank gets. Each rank has the gradient of its own leaf.",
            away,
        ),
        Mistake(
            "mean of the losses",
            "The loss of the program is the sum of both L, not their mean.",
            {f"A right, rank {r}": RIGHT[f"A right, rank {r}"] / 2 for r in RANKS},
        ),
        Mistake(
            "sign of the path through S",
            "1 / S falls where S grows: what comes through S is taken away, not added.",
            {**_of_a("plain", plus), **_of_a("right", (sum(plus),) * 2)},
        ),
        Mistake(
            "S not squared",
            "The derivative of 1 / S is −1 / S², with the square.",
            {
                **_of_a("plain", [_S * t for t in THROUGH]),
                **_of_a("right", (_S * sum(THROUGH),) * 2),
            },
        ),
        Mistake(
            "only the path through S",
            "That is what comes through S. This rank's a is in the numerator of its own L as well.",
            {f"A plain, rank {r}": THROUGH[r] for r in RANKS}
            | {f"A right, rank {r}": sum(THROUGH) for r in RANKS},
        ),
        Mistake(
            "only what the other loss says",
            "That is what the other rank's loss says of this a. This rank's own L says something "
            "of it too: both are in the derivative of their sum.",
            {f"A right, rank {r}": THROUGH[1 - r] for r in RANKS},
        ),
        Mistake(
            "y forgotten",
            "That is the gradient of y by w. The loss is y² / 2, and its derivative by y is y.",
            {f"B plain, rank {r}": X[r] for r in RANKS},
        ),
        Mistake(
            "the loss not derived",
            "That has the value of the loss, or of y², in it. The derivative of y² / 2 is y.",
            {f"B plain, rank {r}": _Y**2 * X[r] for r in RANKS},
        ),
        Mistake(
            "the loss not derived",
            "That has the value of the loss in it. The derivative of y² / 2 is y.",
            {f"B plain, rank {r}": _Y**2 / 2 * X[r] for r in RANKS},
        ),
        Mistake(
            "w for x",
            "The gradient of w in x · w has the factor x; w is the factor of the gradient of x.",
            {f"B plain, rank {r}": _Y * W[r] for r in RANKS},
        ),
        Mistake(
            "plain gradients summed",
            "Each rank has a w of its own: the gradients of two weights are not added up.",
            {f"B plain, rank {r}": _Y * sum(X) for r in RANKS},
        ),
    )


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
        *_slips(),
    )
    compare(given, RIGHT, mistakes, apart=True, units=False)


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
