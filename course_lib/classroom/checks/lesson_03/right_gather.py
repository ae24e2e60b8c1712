"""`right_gather` of lesson 03: four graphs after a gather, and the gradient of each rank's piece.

Each graph is worked out with a dense X by the chain rule; what the other backward of the gather
would give is worked out as well, and recognised.
"""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.classroom.checks.thought import Mistake, Thought, compare

X = (3.0, 5.0)  # the pieces of rank 0 and rank 1, a number each
W = ((1.0, 2.0), (3.0, -1.0))  # W[rank]: that rank's own weights
GRAPHS = ("A", "B", "C", "D")
FIELDS = tuple(f"{graph}, rank {rank}" for graph in GRAPHS for rank in (0, 1))


def coming_back(graph: str, rank: int) -> tuple[float, float]:
    """The gradient of the whole X that comes back to the gather on one rank."""
    if graph == "A":  # L = X0 · X1², on both
        return X[1] ** 2, 2 * X[0] * X[1]
    if graph == "B":  # L = X · w, of each rank its own
        return W[rank]
    if graph == "C":  # y = g(X · w), L = y² / 2
        y = sum(x * w for weights in W for x, w in zip(X, weights, strict=True))
        return y * W[rank][0], y * W[rank][1]
    return tuple(map(sum, zip(*W, strict=True)))  # D: f has summed it already


def own_piece(graph: str) -> dict[str, float]:
    """What the backward gives that takes its own piece of what comes back."""
    return {f"{graph}, rank {r}": coming_back(graph, r)[r] for r in (0, 1)}


def piece_of_sum(graph: str) -> dict[str, float]:
    """What the backward gives that sums over the ranks first."""
    return {f"{graph}, rank {r}": sum(coming_back(graph, k)[r] for k in (0, 1)) for r in (0, 1)}


RIGHT = {**own_piece("A"), **piece_of_sum("B"), **piece_of_sum("C"), **own_piece("D")}


def _only(graph: str, values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if name.startswith(graph)}


_LEFT_OUT = (
    "That is what one rank's own work sends back. The other rank worked with this piece as well, "
    "with weights of its own: the gradient is the sum of both ranks' terms."
)
_TWICE = (
    "That sums over the ranks what is replicated: the gradient comes out once for each rank. Look "
    "at what stands after the gather: is what comes back one term of a sum?"
)


def judge_right_gather(given: Mapping) -> None:
    """Hold the gradients against the chain rule; each graph is by itself."""
    y = sum(x * w for weights in W for x, w in zip(X, weights, strict=True))
    swapped = {f"{g}, rank {r}": RIGHT[f"{g}, rank {1 - r}"] for g in GRAPHS for r in (0, 1)}
    mistakes = (
        Mistake("a sum left out", _LEFT_OUT, {**own_piece("B"), **own_piece("C")}),
        Mistake("copies summed", _TWICE, {**piece_of_sum("A"), **piece_of_sum("D")}),
        Mistake(
            "f forgotten",
            "f stands between the gather and the ranks' own work, and its backward sums. What "
            "comes to the gather is complete by then.",
            {f"D, rank {r}": W[r][r] for r in (0, 1)},
        ),
        Mistake(
            "y forgotten",
            "The loss is y² / 2, so its gradient is not 1 when it comes to X · w.",
            {f"C, rank {r}": RIGHT[f"B, rank {r}"] for r in (0, 1)},
        ),
        Mistake(
            "y of one rank",
            "y is summed by g: it is the same number on both ranks, the sum of both products.",
            {
                f"C, rank {r}": sum(
                    w[r] * sum(x * one for x, one in zip(X, w, strict=True)) for w in W
                )
                for r in (0, 1)
            },
        ),
        Mistake(
            "summed on the way back through g",
            "g hands the gradient back as it is. After it both ranks hold the same y and the same "
            "loss, which is one loss, not two.",
            {f"C, rank {r}": 2 * y * (W[0][r] + W[1][r]) for r in (0, 1)},
        ),
        Mistake(
            "the square forgotten",
            "The derivative of X[1]² is 2 · X[1].",
            {"A, rank 1": X[0] * X[1]},
        ),
        Mistake(
            "mean",
            "That is divided by the number of ranks. The terms of one gradient add up.",
            {name: value / 2 for name, value in RIGHT.items()},
        ),
        Mistake(
            "the other piece",
            "You have the gradient of the other rank's piece: X0 came from rank 0, X1 from rank 1.",
            swapped,
        ),
        Mistake(
            "weights of one rank",
            "x0 is multiplied with the *first* weight of each rank, x1 with the second of each. "
            "You have both weights of one rank, or the other rank's weight alone.",
            {f"{g}, rank {r}": sum(W[r]) for g in "BD" for r in (0, 1)},
        ),
        Mistake(
            "y of one rank",
            "y is summed by g, and what each rank's own work sends back is summed too: here both "
            "are this rank's alone.",
            {
                f"C, rank {r}": W[r][r] * sum(x * one for x, one in zip(X, W[r], strict=True))
                for r in (0, 1)
            },
        ),
        Mistake(
            "the square forgotten",
            "In L = X[0] · X[1]² the second factor stands there twice: its derivative is 2 · X[1].",
            {"A, rank 0": X[1], "A, rank 1": X[0]},
        ),
        Mistake(
            "the term, not its derivative",
            "That has x itself in it. The derivative of X · w by X is w.",
            {f"{g}, rank {r}": X[r] * RIGHT[f"{g}, rank {r}"] for g in "BD" for r in (0, 1)},
        ),
    )
    compare(given, RIGHT, mistakes, apart=True, units=False)


RIGHT_GATHER = Thought(
    name="right_gather",
    title="The right way back through a gather",
    points=3,
    fields=FIELDS,
    judge=judge_right_gather,
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
