"""`plain_all_reduce` of lesson 03: gradients where a forward sums and autograd sees nothing.

Two graphs on two ranks: one where the sum is used by every rank in its own way, one where all go
on alike. The right numbers and each misreading are worked out by the chain rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.classroom.checks.thought import Mistake, Thought, held_against
from course_lib.classroom.checks.words import Words

SAYS = Words("""
nothing through S: You have left the path through S out. This rank's own a is in S too: autograd
  takes the sum for the identity, which passes a gradient on, and not for a constant.
as it should be: That is what is right, with the other rank's loss in it. autograd knows of no
  message: what the other rank's loss says of this a never comes here.
the other rank's loss left out: That is what autograd gives. The other rank divides by S as well,
  and S moves with this a: what its loss says of S is missing.
only the other rank's loss: You have the other rank's path through S, and not this rank's own.
mean: What the two losses say of S adds up; that is their mean.
plain gradients summed #1: You have summed the two plain gradients, of two scalars. To a rank's own
  one comes only what the other rank's loss says of S.
S of one rank: The value of S is the sum of both: the message is sent. The way back is missing.
summed on the way back as well: After the sum both ranks compute one loss. Twice is what an
  all-reduce gives whose backward is an all-reduce, as torch's functional one.
y of one rank: The value of y is the full sum, on both ranks: the message is sent.
half of it: Each term of a sum has the full gradient of the sum; it is not shared out.
y's own gradient: That is the gradient of y. w is one step further back: times x.
no gradient at all: A plain all_reduce cuts nothing off: autograd takes it for the identity.
ranks exchanged: That is what the other rank gets. Each rank has the gradient of its own leaf.
mean of the losses: The loss of the program is the sum of both L, not their mean.
sign of the path through S: 1 / S falls where S grows: what comes through S is taken away.
S not squared: The derivative of 1 / S is −1 / S², with the square.
only the path through S: This rank's a is in the numerator of its own L as well.
only what the other loss says: This rank's own L says something of its a too.
y forgotten: That is the gradient of y by w. The loss is y² / 2, and its derivative by y is y.
the loss not derived #1: That has y² in it. The derivative of y² / 2 is y.
the loss not derived #2: That has the value of the loss in it. The derivative of y² / 2 is y.
w for x: The gradient of w in x · w has the factor x; w is the factor of the gradient of x.
plain gradients summed #2: Each rank has a w of its own: their gradients are not added up.
""")
A, C = (1.0, 3.0), (8.0, 16.0)  # graph A: L = c · a / S on each rank, S = the sum of both a
X, W = (2.0, 3.0), (1.0, 2.0)  # graph B: y = the sum of x · w, L = y² / 2
RANKS = (0, 1)
_GRAPHS = ("A plain", "A right", "B plain")
FIELDS = tuple(f"{graph}, rank {rank}" for graph in _GRAPHS for rank in RANKS)

_S, _Y = sum(A), sum(x * w for x, w in zip(X, W, strict=True))
DIRECT = tuple(c / _S for c in C)  # ∂L of this rank by its own a, with S held fast
THROUGH = tuple(-c * a / _S**2 for a, c in zip(A, C, strict=True))  # and by S


def _of(graph: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{graph}, rank {r}": values[r] for r in RANKS}


def _of_a(which: str, through: Sequence[float]) -> dict[str, float]:
    return _of(f"A {which}", [DIRECT[r] + through[r] for r in RANKS])


def _of_b(*factors: float) -> dict[str, float]:
    return _of("B plain", [factor * x for factor, x in zip(factors, X, strict=True)])


ALL = (sum(THROUGH),) * 2
RIGHT = {**_of_a("plain", THROUGH), **_of_a("right", ALL), **_of_b(_Y, _Y)}


def _mistakes() -> tuple[Mistake, ...]:
    """What each wrong idea gives: of the paths between ranks first, then of the paper work."""
    none, others, plus = (0.0, 0.0), THROUGH[::-1], [-t for t in THROUGH]
    both = sum(DIRECT) + sum(THROUGH)  # an all-reduce of the two plain gradients of a
    ideas = {
        "nothing through S": _of_a("plain", none) | _of_a("right", none),
        "as it should be": _of_a("plain", ALL),
        "the other rank's loss left out": _of_a("right", THROUGH),
        "only the other rank's loss": _of_a("plain", others) | _of_a("right", others),
        "mean": _of_a("right", (sum(THROUGH) / 2,) * 2),
        "plain gradients summed #1": _of("A right", (both, both)),
        "S of one rank": _of("A plain", none),
        "summed on the way back as well": _of_b(2 * _Y, 2 * _Y),
        "y of one rank": _of_b(*(x * w for x, w in zip(X, W, strict=True))),
        "half of it": _of_b(_Y / 2, _Y / 2),
        "y's own gradient": _of("B plain", (_Y, _Y)),
        "no gradient at all": _of("B plain", none),
        "ranks exchanged": {
            f"{graph}, rank {r}": RIGHT[f"{graph}, rank {1 - r}"]
            for graph in _GRAPHS
            for r in RANKS
        },
        "mean of the losses": {name: RIGHT[name] / 2 for name in RIGHT if "right" in name},
        "sign of the path through S": _of_a("plain", plus) | _of_a("right", (sum(plus),) * 2),
        "S not squared": _of_a("plain", [_S * t for t in THROUGH])
        | _of_a("right", (_S * sum(THROUGH),) * 2),
        "only the path through S": _of("A plain", THROUGH) | _of("A right", ALL),
        "only what the other loss says": _of("A right", others),
        "y forgotten": _of_b(1, 1),
        "the loss not derived #1": _of_b(_Y**2, _Y**2),
        "the loss not derived #2": _of_b(_Y**2 / 2, _Y**2 / 2),
        "w for x": _of("B plain", [_Y * w for w in W]),
        "plain gradients summed #2": _of("B plain", (_Y * sum(X),) * 2),
    }
    return tuple(Mistake(*SAYS.of(entry), values) for entry, values in ideas.items())


PLAIN = Thought(
    name="plain_all_reduce",
    title="What autograd makes of a plain all_reduce",
    points=3,
    fields=FIELDS,
    judge=held_against(lambda: RIGHT, _mistakes, apart=True, units=False),
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
