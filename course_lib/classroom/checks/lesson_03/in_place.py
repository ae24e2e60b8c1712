"""`in_place_gradients` of lesson 03: four graphs whose sums were made in place, on two ranks.

The right numbers come from what each operation keeps; tests and the notebook's last cell hold them
against two real ranks that really sum in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from course_lib.classroom.checks.thought import Mistake, Thought, held_against
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_03/in_place_gradients")
INPUTS = {"exp": (math.log(2), math.log(3)), "relu": (-1.0, 2.0), "square": (3.0, 5.0)}
COMING, FACTOR = (2.0, 3.0), 5.0  # "beside": the gradient that comes on each rank, u's factor
GRAPHS = ("exp", "relu", "square", "beside")
FIELDS = tuple(f"{graph}, rank {rank}" for graph in GRAPHS for rank in (0, 1))
FORWARD = {"exp": math.exp, "relu": lambda x: max(x, 0.0), "square": lambda x: x * x}
SUMS = {graph: sum(map(FORWARD[graph], xs)) for graph, xs in INPUTS.items()}


def _backward(graph: str, x: float, result: float) -> float:
    """What each operation's backward makes of what it kept: its input, or its result."""
    return {"exp": result, "relu": float(result > 0), "square": 2 * x}[graph]


def _own(graph: str, r: int) -> float:
    """The gradient where nothing was written over."""
    if graph == "beside":
        return FACTOR * COMING[r]
    x = INPUTS[graph][r]
    return _backward(graph, x, FORWARD[graph](x))


def _in_place(graph: str, r: int) -> float:
    if graph == "beside":
        return FACTOR * sum(COMING)
    return _backward(graph, INPUTS[graph][r], SUMS[graph])


def _input_over(graph: str, r: int) -> float:
    """The gradient if x itself had become the sum."""
    x = sum(INPUTS[graph])
    return _backward(graph, x, FORWARD[graph](x))


def _answers(at: Callable[[str, int], float], graphs: Sequence[str] = GRAPHS) -> dict[str, float]:
    """The answers that follow from finding `at(graph, rank)`."""
    return {f"{graph}, rank {r}": at(graph, r) for graph in graphs for r in (0, 1)}


RIGHT = _answers(_in_place)


def _mistakes() -> tuple[Mistake, ...]:
    """What each wrong idea gives, and for which graphs."""
    square, beside, total = ["square"], ["beside"], sum(COMING)
    ideas = {
        "out of place": (_own, ["exp", "relu", "beside"]),
        "a mask of its own": (lambda graph, r: SUMS[graph], ["relu"]),
        "doubled": (lambda graph, r: 2 * _own(graph, r), GRAPHS),
        "the input overwritten": (_input_over, ["exp", "square"]),
        "the result kept #1": (lambda graph, r: 2 * SUMS[graph], square),
        "the result kept #2": (lambda graph, r: 2 * math.sqrt(SUMS[graph]), square),
        "the result kept #3": (lambda graph, r: SUMS[graph], square),
        "the branch without its factor": (lambda graph, r: total, beside),
        "both branches added": (lambda graph, r: FACTOR * (total + COMING[r]), beside),
        "summed on the way back as well": (lambda graph, r: 2 * _in_place(graph, r), GRAPHS[:3]),
        "mean": (lambda graph, r: _in_place(graph, r) / 2, ["exp", "beside"]),
        "ranks exchanged": (lambda graph, r: _own(graph, 1 - r), GRAPHS),
        "c counted twice": (lambda graph, r: FACTOR * COMING[r] * total, beside),
    }
    return tuple(Mistake(*SAYS.of(entry), _answers(*idea)) for entry, idea in ideas.items())


IN_PLACE = Thought(
    fields=FIELDS,
    judge=held_against(RIGHT, _mistakes(), apart=True, units=False),
    **SAYS.about,
)
