"""`in_place_gradients` of lesson 03: four graphs with in-place sums, on two ranks.

The numbers follow from the tensors that operations save; tests compare them with real ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from course_classroom.judge.thought import Thought, held_against, named
from course_classroom.judge.words import Page

SAYS = Page(__file__, "in_place_gradients")
INPUTS = {"exp": (math.log(2), math.log(3)), "relu": (-1.0, 2.0), "square": (3.0, 5.0)}
COMING, FACTOR = (2.0, 3.0), 5.0  # for the branch graph: each rank's incoming gradient, u's factor
GRAPHS = ("exp", "relu", "square", "beside")
FIELDS = tuple(f"{graph}, rank {rank}" for graph in GRAPHS for rank in (0, 1))
FORWARD = {"exp": math.exp, "relu": lambda x: max(x, 0.0), "square": lambda x: x * x}
SUMS = {graph: sum(map(FORWARD[graph], xs)) for graph, xs in INPUTS.items()}


def _backward(graph: str, x: float, result: float) -> float:
    """Return an operation's derivative from its saved tensor: the input or the result."""
    return {"exp": result, "relu": float(result > 0), "square": 2 * x}[graph]


def _of(graph: str, x: float) -> float:
    return _backward(graph, x, FORWARD[graph](x))


def _own(graph: str, r: int) -> float:
    """Return the gradient that results if nothing was overwritten."""
    return FACTOR * COMING[r] if graph == "beside" else _of(graph, INPUTS[graph][r])


def _in_place(graph: str, r: int) -> float:
    if graph == "beside":
        return FACTOR * sum(COMING)
    return _backward(graph, INPUTS[graph][r], SUMS[graph])


def _answers(at: Callable[[str, int], float], *graphs: str) -> dict[str, float]:
    """Return the answers that follow from the gradient `at(graph, rank)`."""
    return {f"{graph}, rank {r}": at(graph, r) for graph in graphs or GRAPHS for r in (0, 1)}


RIGHT = _answers(_in_place)
TOTAL = sum(COMING)
IDEAS = (  # the values of each idea, and its graphs
    ("out of place", _own, "exp", "relu", "beside"),
    ("relu's result used as gradient", lambda graph, r: SUMS[graph], "relu"),
    ("doubled", lambda graph, r: 2 * _own(graph, r)),
    ("the input overwritten", lambda graph, r: _of(graph, sum(INPUTS[graph])), "exp", "square"),
    ("the result kept", lambda graph, r: 2 * SUMS[graph], "square"),
    ("the result kept", lambda graph, r: 2 * math.sqrt(SUMS[graph]), "square"),
    ("the result kept", lambda graph, r: SUMS[graph], "square"),
    ("the branch without its factor", lambda graph, r: TOTAL, "beside"),
    ("both branches added", lambda graph, r: FACTOR * (TOTAL + COMING[r]), "beside"),
    ("summed on the way back as well", lambda graph, r: 2 * _in_place(graph, r), *GRAPHS[:3]),
    ("mean", lambda graph, r: _in_place(graph, r) / 2, "exp", "beside"),
    ("ranks exchanged", lambda graph, r: _own(graph, 1 - r)),
    ("c counted twice", lambda graph, r: FACTOR * COMING[r] * TOTAL, "beside"),
)
MISTAKES = named(SAYS, [(entry, _answers(*idea)) for entry, *idea in IDEAS])
IN_PLACE = Thought(
    fields=FIELDS, judge=held_against(RIGHT, MISTAKES, apart=True, units=False), **SAYS.about
)
