"""`in_place_gradients` of lesson 03: four graphs whose sums were made in place, on two ranks.

The right numbers come from what each operation keeps; tests and the notebook's last cell hold them
against two real ranks that really sum in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from course_lib.classroom.checks.thought import Mistake, Thought, compare

INPUTS = {"exp": (math.log(2), math.log(3)), "relu": (-1.0, 2.0), "square": (3.0, 5.0)}
COMING, FACTOR = (2.0, 3.0), 5.0  # "beside": the gradient that comes on each rank, u's factor
GRAPHS = ("exp", "relu", "square", "beside")
FIELDS = tuple(f"{graph}, rank {rank}" for graph in GRAPHS for rank in (0, 1))


def _forward(graph: str, x: float) -> float:
    return {"exp": math.exp, "relu": lambda v: max(v, 0.0), "square": lambda v: v * v}[graph](x)


def _backward(graph: str, x: float, result: float) -> float:
    """What each operation's backward makes of what it kept: its input, or its result."""
    return {"exp": result, "relu": float(result > 0), "square": 2 * x}[graph]


def _own(graph: str, rank: int) -> float:
    """The gradient where nothing was written over."""
    if graph == "beside":
        return FACTOR * COMING[rank]
    x = INPUTS[graph][rank]
    return _backward(graph, x, _forward(graph, x))


def _summed(graph: str) -> float:
    return sum(_forward(graph, x) for x in INPUTS[graph])


def _in_place(graph: str, rank: int) -> float:
    if graph == "beside":
        return FACTOR * sum(COMING)
    return _backward(graph, INPUTS[graph][rank], _summed(graph))


def _input_over(graph: str, rank: int) -> float:
    """The gradient if x itself had become the sum."""
    x = sum(INPUTS[graph])
    return _backward(graph, x, _forward(graph, x))


def _answers(at: Callable[[str, int], float], graphs: tuple[str, ...] = GRAPHS) -> dict[str, float]:
    """The answers that follow from finding `at(graph, rank)`."""
    return {f"{graph}, rank {rank}": at(graph, rank) for graph in graphs for rank in (0, 1)}


RIGHT = _answers(_in_place)
MISTAKES = (
    Mistake(
        "out of place",
        "That is the gradient as it should be: what a g, or an f, gives that sums a copy. Here the "
        "sum was written over a tensor that is used again: by whom?",
        _answers(_own, ("exp", "relu", "beside")),
    ),
    Mistake(
        "doubled",
        "That is twice what it should be. Twice comes out where both ranks hold the same number; "
        "here they hold different ones, and the sum took their place.",
        _answers(lambda graph, rank: 2 * _own(graph, rank)),
    ),
    Mistake(
        "the input overwritten",
        "That would come out if the sum had been written over x. g was given the *result* of the "
        "operation, and wrote over that; what does the operation's backward use?",
        _answers(_input_over, ("exp", "square")),
    ),
    Mistake(
        "the result kept",
        "A square does not keep its result: the derivative of x · x is 2x, and it is x that is "
        "kept. Nothing wrote over that.",
        _answers(lambda graph, rank: 2 * _summed(graph), ("square",)),
    ),
    Mistake(
        "the result kept",
        "A square does not keep its result, from which x could be found as a root. It keeps x.",
        _answers(lambda graph, rank: 2 * math.sqrt(_summed(graph)), ("square",)),
    ),
    Mistake(
        "the result kept",
        "That is what g wrote, the sum of both results. A square's backward does not look at it.",
        _answers(lambda graph, rank: _summed(graph), ("square",)),
    ),
    Mistake(
        "the branch without its factor",
        "What comes to u passes `5 * u` on its way: the gradient is five times what came there.",
        _answers(lambda graph, rank: sum(COMING), ("beside",)),
    ),
    Mistake(
        "both branches added",
        "That adds what came before the sum and what came after it. There is one tensor for both "
        "branches, and when `5 * u` reads it, it holds the sum alone.",
        _answers(lambda graph, rank: FACTOR * (sum(COMING) + COMING[rank]), ("beside",)),
    ),
    Mistake(
        "a mask of its own",
        "relu keeps no number of its own to look at but its result: where that is above zero, the "
        "gradient passes as it is, times one.",
        _answers(lambda graph, rank: _summed(graph), ("relu",)),
    ),
    Mistake(
        "summed on the way back as well",
        "G's backward hands dy on as it is: the loss is one, computed twice, and nothing is summed "
        "over its copies.",
        _answers(lambda graph, rank: 2 * _in_place(graph, rank), ("exp", "relu", "square")),
    ),
    Mistake(
        "mean",
        "That is the mean over both ranks. What was written in its place is the sum.",
        _answers(lambda graph, rank: _in_place(graph, rank) / 2, ("exp", "beside")),
    ),
    Mistake(
        "ranks exchanged",
        "That is what the other rank's numbers give. No rank ever sees the other's x or c alone.",
        _answers(lambda graph, rank: _own(graph, 1 - rank)),
    ),
    Mistake(
        "c counted twice",
        "The gradient that comes is c itself, and the sum took its place. Nothing is multiplied "
        "with c once more.",
        _answers(lambda graph, rank: FACTOR * COMING[rank] * sum(COMING), ("beside",)),
    ),
)


def judge_in_place(given: Mapping) -> None:
    """Hold the gradients against what the overwritten tensors give; each graph is by itself."""
    compare(given, RIGHT, MISTAKES, apart=True, units=False)


IN_PLACE = Thought(
    name="in_place_gradients",
    title="What a sum in place does to gradients",
    points=3,
    fields=FIELDS,
    judge=judge_in_place,
    when_right=(
        "An operation that keeps its result (exp, relu; also tanh, sigmoid, sqrt, softmax) is "
        "harmed when a later step writes over that result; one that keeps its input is not. And a "
        "gradient that goes to two branches is one tensor. No run stops, and a net with such "
        "gradients still learns something. Measured below, on ranks that really do it."
    ),
    hints=(
        "For each operation write down its derivative, and with what it is computed: with the "
        "input x, or with the result y? torch keeps that one.",
        "After the operation, g wrote the sum over both ranks into the operation's result. Which "
        "of the four have kept a tensor that is another one now?",
        "relu's backward asks its result, element by element: was it above zero? Ask the tensor "
        "that it holds now.",
        "In the last graph the same gradient goes to f and to `5 * u`, as one tensor. autograd "
        "comes to what was made last first. What does the tensor hold when `5 * u` has its turn?",
    ),
)
