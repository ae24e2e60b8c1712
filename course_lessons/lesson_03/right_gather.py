"""`right_gather` of lesson 03: four graphs after a gather, and the gradient of each rank's piece.

The gradients come from the chain rule, as do the results of the gather's other backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_classroom.judge.thought import Thought, held_against, named
from course_classroom.judge.words import Page

SAYS = Page(__file__, "right_gather")
X = (3.0, 5.0)  # the pieces of rank 0 and rank 1, one number each
W = ((1.0, 2.0), (3.0, -1.0))  # W[rank]: that rank's own weights
GRAPHS = ("A", "B", "C", "D")
FIELDS = tuple(f"{graph}, rank {rank}" for graph in GRAPHS for rank in (0, 1))
OWN = [W[0][0], W[1][1]]  # of X · w on one rank, by its own piece
SUMMED = [sum(both) for both in zip(*W, strict=True)]  # and of the sum of both
PRODUCTS = [sum(x * w for x, w in zip(X, own, strict=True)) for own in W]
Y = sum(PRODUCTS)  # on both ranks, after g
OF_A = [X[1] ** 2, 2 * X[0] * X[1]]


def _of(graph: str, values: Sequence[float], factor: float = 1) -> dict[str, float]:
    return {f"{graph}, rank {r}": factor * values[r] for r in (0, 1)}


RIGHT = _of("A", OF_A) | _of("B", SUMMED) | _of("C", SUMMED, Y) | _of("D", SUMMED)


CROSSED = [sum(w[r] * y for w, y in zip(W, PRODUCTS, strict=True)) for r in (0, 1)]
ROW = [sum(w) for w in W]
TERMS = [x * w for x, w in zip(X, SUMMED, strict=True)]
OTHER = {f"{graph}, rank {r}": RIGHT[f"{graph}, rank {1 - r}"] for graph in GRAPHS for r in (0, 1)}
IDEAS = (  # the values of each idea; each graph is independent
    ("a sum left out", _of("B", OWN) | _of("C", OWN, Y)),
    ("copies summed", _of("A", OF_A, 2) | _of("D", SUMMED, 2)),
    ("f forgotten", _of("D", OWN)),
    ("y forgotten", _of("C", SUMMED)),
    ("y of one rank", _of("C", CROSSED)),
    ("summed on the way back through g", _of("C", SUMMED, 2 * Y)),
    ("the square forgotten", {"A, rank 1": X[0] * X[1]}),
    ("mean", {name: value / 2 for name, value in RIGHT.items()}),
    ("the other piece", OTHER),
    ("weights of one rank", _of("B", ROW) | _of("D", ROW)),
    ("y of one rank", _of("C", [w * y for w, y in zip(OWN, PRODUCTS, strict=True)])),
    ("y of one rank", _of("C", [w * y for w, y in zip(SUMMED, PRODUCTS, strict=True)])),
    ("the square forgotten", _of("A", X[::-1])),
    ("the term, not its derivative", _of("B", TERMS) | _of("D", TERMS)),
)
RIGHT_GATHER = Thought(
    fields=FIELDS,
    judge=held_against(RIGHT, named(SAYS, IDEAS), apart=True, units=False),
    **SAYS.about,
)
