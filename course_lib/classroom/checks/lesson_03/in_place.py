"""`in_place_gradients` of lesson 03: four graphs whose sums were made in place, on two ranks.

The right numbers come from what each operation keeps; tests and the notebook's last cell hold them
against two real ranks that really sum in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from course_lib.classroom.checks.thought import Mistake, Thought, held_against
from course_lib.classroom.checks.words import Words

SAYS = Words("""
out of place: That is the gradient as it should be: what a g, or an f, gives that sums a copy. Here
  the sum was written over a tensor that is used again: by whom?
doubled: That is twice what it should be. Twice comes out where both ranks hold the same number;
  here they hold different ones, and the sum took their place.
the input overwritten: That would come out if the sum had been written over x. g was given the
  *result* of the operation, and wrote over that; what does the operation's backward use?
the result kept #1: A square keeps x, not its result. Its derivative is 2x, of the x that it has.
the result kept #2: A square keeps x, and not its result, from which x could be found as a root.
the result kept #3: That is what g wrote, the sum of both. A square's backward does not look at it.
the branch without its factor: What comes to u passes `5 * u`: it is five times what came there.
both branches added: That adds what came before the sum and what came after it. There is one tensor
  for both branches, and when `5 * u` reads it, it holds the sum alone.
a mask of its own: relu keeps no number of its own to look at but its result: where that is above
  zero, the gradient passes as it is, times one.
summed on the way back as well: G's backward hands dy on as it is: nothing is summed there.
mean: That is the mean over both ranks. What was written in its place is the sum.
ranks exchanged: That is of the other rank's numbers. No rank ever sees the other's x or c alone.
c counted twice: The gradient that comes is c itself: nothing is multiplied with c once more.
""")
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
    name="in_place_gradients",
    title="What a sum in place does to gradients",
    points=3,
    fields=FIELDS,
    judge=held_against(lambda: RIGHT, _mistakes, apart=True, units=False),
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
