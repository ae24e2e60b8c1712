"""`right_gather` of lesson 03: four graphs after a gather, and the gradient of each rank's piece.

Worked out by the chain rule, with what the gather's other backward would give.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.classroom.checks.thought import Mistake, Thought, held_against
from course_lib.classroom.checks.words import Words

SAYS = Words("""
a sum left out: That is what one rank's own work sends back. The other rank worked with this piece
  as well, with weights of its own: the gradient is the sum of both ranks' terms.
copies summed: That sums over the ranks what is replicated: the gradient comes out once for each
  rank. Look at what stands after the gather: is what comes back one term of a sum?
f forgotten: f stands after the gather, and its backward sums: what comes to the gather is complete.
y forgotten: The loss is y² / 2, so its gradient is not 1 when it comes to X · w.
y of one rank #1: y is summed by g: it is the same number on both ranks, the sum of both products.
summed on the way back through g: g hands the gradient back as it is. After it both ranks hold the
  same y and the same loss, which is one loss, not two.
the square forgotten #1: The derivative of X[1]² is 2 · X[1].
mean: That is divided by the number of ranks. The terms of one gradient add up.
the other piece: That is the gradient of the other rank's piece: X0 is of rank 0, X1 of rank 1.
weights of one rank: x0 is multiplied with the *first* weight of each rank, x1 with the second of
  each. You have both weights of one rank, or the other rank's weight alone.
y of one rank #2: y is summed by g, and what comes back is summed too: here both are of one rank.
y of one rank #3: y is summed by g: here it is of this rank alone, though what comes back is summed.
the square forgotten #2: In X[0] · X[1]² the second factor is squared: its derivative is 2 · X[1].
the term, not its derivative: That has x itself in it. The derivative of X · w by X is w.
""")
X = (3.0, 5.0)  # the pieces of rank 0 and rank 1, a number each
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


def _mistakes() -> tuple[Mistake, ...]:
    """What each wrong idea gives; each graph is by itself."""
    crossed = [sum(w[r] * y for w, y in zip(W, PRODUCTS, strict=True)) for r in (0, 1)]
    row = [sum(w) for w in W]
    ideas = {
        "a sum left out": _of("B", OWN) | _of("C", OWN, Y),
        "copies summed": _of("A", OF_A, 2) | _of("D", SUMMED, 2),
        "f forgotten": _of("D", OWN),
        "y forgotten": _of("C", SUMMED),
        "y of one rank #1": _of("C", crossed),
        "summed on the way back through g": _of("C", SUMMED, 2 * Y),
        "the square forgotten #1": {"A, rank 1": X[0] * X[1]},
        "mean": {name: value / 2 for name, value in RIGHT.items()},
        "the other piece": {
            f"{g}, rank {r}": RIGHT[f"{g}, rank {1 - r}"] for g in GRAPHS for r in (0, 1)
        },
        "weights of one rank": _of("B", row) | _of("D", row),
        "y of one rank #2": _of("C", [w * y for w, y in zip(OWN, PRODUCTS, strict=True)]),
        "y of one rank #3": _of("C", [w * y for w, y in zip(SUMMED, PRODUCTS, strict=True)]),
        "the square forgotten #2": _of("A", X[::-1]),
        "the term, not its derivative": {
            f"{g}, rank {r}": X[r] * SUMMED[r] for g in "BD" for r in (0, 1)
        },
    }
    return tuple(Mistake(*SAYS.of(entry), values) for entry, values in ideas.items())


RIGHT_GATHER = Thought(
    name="right_gather",
    title="The right way back through a gather",
    points=3,
    fields=FIELDS,
    judge=held_against(lambda: RIGHT, _mistakes, apart=True, units=False),
    when_right=(
        "What decides is not the gather but what comes after it. In A and D every rank comes back "
        "with the complete gradient and takes its piece, for nothing; in B and C each comes back "
        "with one term, and a reduce-scatter makes the sum. g after the ranks' own work changes "
        "nothing: between gather and g each rank still works with weights of its own. f does "
        "change it, because its backward has summed."
    ),
    hints=(
        "For each graph write down the gradient of the full X that arrives at the gather on rank "
        "0, and on rank 1. Are the two the same?",
        "If they are the same, the gradient is replicated: both ranks have all of it. If not, it "
        "is partial: each has one term, and the gradient is their sum.",
        "In C find y first, from both ranks; the gradient of y² / 2 is y. g's backward hands it to "
        "both as it is.",
        "In D the weights are of each rank its own, as in B. What has f's backward done with the "
        "two gradients before they come to the gather?",
    ),
)
