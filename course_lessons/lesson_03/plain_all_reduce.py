"""`plain_all_reduce` of lesson 03: gradients if autograd cannot see a sum in the forward pass.

In one graph every rank uses the sum differently; in the other all ranks use it alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_classroom.judge.thought import Thought, held_against, named
from course_classroom.judge.words import Page

SAYS = Page(__file__, "plain_all_reduce")
A, C = (1.0, 3.0), (8.0, 16.0)  # graph A: L = c · a / S on each rank, S = the sum of both a
X, W = (2.0, 3.0), (1.0, 2.0)  # graph B: y = the sum of x · w, L = y² / 2
RANKS = (0, 1)
_GRAPHS = ("A plain", "A right", "B plain")
FIELDS = tuple(f"{graph}, rank {rank}" for graph in _GRAPHS for rank in RANKS)

_S, _Y = sum(A), sum(x * w for x, w in zip(X, W, strict=True))
DIRECT = tuple(c / _S for c in C)  # ∂L of this rank by its own a, with S constant
THROUGH = tuple(-c * a / _S**2 for a, c in zip(A, C, strict=True))  # and through S


def _of(graph: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{graph}, rank {r}": values[r] for r in RANKS}


def _of_a(which: str, through: Sequence[float]) -> dict[str, float]:
    return _of(f"A {which}", [DIRECT[r] + through[r] for r in RANKS])


def _of_b(*factors: float) -> dict[str, float]:
    return _of("B plain", [factor * x for factor, x in zip(factors, X, strict=True)])


ALL = (sum(THROUGH),) * 2
RIGHT = {**_of_a("plain", THROUGH), **_of_a("right", ALL), **_of_b(_Y, _Y)}


NONE, OTHERS = (0.0, 0.0), THROUGH[::-1]
PLUS, BY_S = [-t for t in THROUGH], [_S * t for t in THROUGH]
BOTH = sum(DIRECT) + sum(THROUGH)  # an all-reduce of the two plain gradients of a
OTHER = {f"{graph}, rank {r}": RIGHT[f"{graph}, rank {1 - r}"] for graph in _GRAPHS for r in RANKS}
IDEAS = (  # first the paths between ranks, then the derivation
    ("nothing through S", _of_a("plain", NONE) | _of_a("right", NONE)),
    ("as it should be", _of_a("plain", ALL)),
    ("the other rank's loss left out", _of_a("right", THROUGH)),
    ("only the other rank's loss", _of_a("plain", OTHERS) | _of_a("right", OTHERS)),
    ("mean", _of_a("right", (sum(THROUGH) / 2,) * 2)),
    ("plain gradients summed", _of("A right", (BOTH, BOTH))),
    ("S of one rank", _of("A plain", NONE)),
    ("summed on the way back as well", _of_b(2 * _Y, 2 * _Y)),
    ("y of one rank", _of_b(*(x * w for x, w in zip(X, W, strict=True)))),
    ("half of it", _of_b(_Y / 2, _Y / 2)),
    ("y's own gradient", _of("B plain", (_Y, _Y))),
    ("no gradient at all", _of("B plain", NONE)),
    ("ranks exchanged", OTHER),
    ("mean of the losses", {name: RIGHT[name] / 2 for name in RIGHT if "right" in name}),
    ("sign of the path through S", _of_a("plain", PLUS) | _of_a("right", (sum(PLUS),) * 2)),
    ("S not squared", _of_a("plain", BY_S) | _of_a("right", (sum(BY_S),) * 2)),
    ("only the path through S", _of("A plain", THROUGH) | _of("A right", ALL)),
    ("only the other loss's term", _of("A right", OTHERS)),
    ("y forgotten", _of_b(1, 1)),
    ("loss not differentiated", _of_b(_Y**2, _Y**2)),
    ("loss not differentiated", _of_b(_Y**2 / 2, _Y**2 / 2)),
    ("w for x", _of("B plain", [_Y * w for w in W])),
    ("plain gradients summed", _of("B plain", (_Y * sum(X),) * 2)),
)
PLAIN = Thought(
    fields=FIELDS,
    judge=held_against(RIGHT, named(SAYS, IDEAS), apart=True, units=False),
    **SAYS.about,
)
