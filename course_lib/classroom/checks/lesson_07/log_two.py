"""`log_two` of lesson 07: gathered logits handed to the cut loss, in numbers.

Every rank then counts every word: the sum is n times what it should be, the target is found once.
The right numbers follow from that, and each wrong idea from another count.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, log2, log10

from course_lib.classroom.checks.thought import Mistake, Thought, compare

WORDS, PADDED, LATER, P = 50_257, 51_200, 3.0, 0.3  # in the question
START, THEN, EIGHT = "at the start, logged", "later, logged", "eight ranks, too high by"
PADDING, ADDS_UP = "padding, too high by", "softmax of a rank adds up to"
DENSE, RANK_0, RANK_1 = "target, one process", "target, rank 0", "target, rank 1"
FIELDS = (START, THEN, EIGHT, PADDING, ADDS_UP, DENSE, RANK_0, RANK_1)


def _losses(ln=log, start: float = 2 * WORDS, more: float = 2, eight: float = 8) -> dict:
    """Of losses that are a logarithm of so many words, and so many times too high inside it."""
    return {START: ln(start), THEN: LATER + ln(more), EIGHT: ln(eight), PADDING: ln(PADDED / WORDS)}


RIGHT = {
    **_losses(),
    ADDS_UP: 1 / 2,
    DENSE: P - 1,
    RANK_0: P / 2 - 1,
    RANK_1: P / 2,
}
MISTAKES = (
    Mistake(
        "another logarithm",
        "That logarithm is to the base 2. The loss has the natural one.",
        _losses(log2),
    ),
    Mistake(
        "another logarithm",
        "That logarithm is to the base 10. The loss has the natural one.",
        _losses(log10),
    ),
    Mistake(
        "the loss times n",
        "You have multiplied the loss. What is too large by the number of ranks is the sum of "
        "exponentials, and of that the loss is a logarithm.",
        {START: 2 * log(WORDS), THEN: 2 * LATER, EIGHT: 8},
    ),
    Mistake(
        "nothing changes",
        "That is what one process has. In the bug each rank adds *all* exponentials to the sum.",
        {START: log(WORDS), THEN: LATER, EIGHT: 0.0, ADDS_UP: 1.0, RANK_0: P - 1},
    ),
    Mistake(
        "fewer words",
        "That would be a loss over a rank's own entries alone. Here it is the other way round: "
        "each rank has all of them.",
        {START: log(WORDS / 2), THEN: LATER - log(2), EIGHT: -log(8)},
    ),
    Mistake(
        "another number of ranks",
        "That is what two ranks add. Every one of the eight counts all entries.",
        {EIGHT: log(2)},
    ),
    Mistake(
        "another number of ranks",
        "One rank's count is right, and seven are too many: but what is added up is eight times "
        "one sum, and the loss a logarithm of that.",
        {EIGHT: log(7)},
    ),
    *(
        Mistake(
            "another number of ranks",
            f"That is {many} times log 2. The eight ranks' sums are added before the logarithm, "
            "not their logarithms.",
            {EIGHT: many * log(2)},
        )
        for many in (4, 7, 8)
    ),
    Mistake(
        "the loss itself",
        "That is what is logged. Asked is by how much it is too high.",
        {EIGHT: log(8 * WORDS), PADDING: log(PADDED)},
    ),
    Mistake(
        "shrinks with the loss",
        "You have made the error a share of the loss. What is added inside the logarithm as a "
        "factor is the same at the start and later.",
        {THEN: LATER * log(2 * WORDS) / log(WORDS)},
    ),
    Mistake(
        "the ratio itself",
        "That is the ratio of the sums of exponentials, or by how much it is above 1. The loss is "
        "a logarithm of the sum.",
        {EIGHT: 8.0, PADDING: PADDED / WORDS},
    ),
    Mistake(
        "the ratio itself",
        "That is by how much the ratio of the sums is above 1. The loss is a logarithm: close to "
        "it here, and not the same.",
        {EIGHT: 7.0, PADDING: PADDED / WORDS - 1},
    ),
    Mistake(
        "the padding's own logarithm",
        "That is the logarithm of the number of padded rows. Compare two sums: with them, and "
        "without.",
        {PADDING: log(PADDED - WORDS)},
    ),
    Mistake(
        "a share of the rows",
        "That is the padding's share of all rows. The loss is a logarithm of a sum: compare the "
        "sum with the padding to that without.",
        {PADDING: (PADDED - WORDS) / PADDED},
    ),
    Mistake(
        "too low",
        "By how much it is too *high* is asked: more exponentials in the sum, a higher loss.",
        {PADDING: -log(PADDED / WORDS)},
    ),
    Mistake(
        "zero logits cost nothing",
        "A padded row takes part with an exponential of 1, like each of the entries at the start.",
        {PADDING: 0.0},
    ),
    Mistake(
        "twice as much",
        "The sum that is divided *by* is twice as large; each exponential of a rank is there once.",
        {ADDS_UP: 2.0, RANK_0: 2 * P - 1, RANK_1: 2 * P},
    ),
    Mistake(
        "half of all",
        "You have halved softmax and one-hot. The one-hot is set by the rank that finds the "
        "target, and knows nothing of a sum.",
        {RANK_0: (P - 1) / 2, RANK_1: (P - 1) / 2},
    ),
    Mistake(
        "target on both ranks",
        "The second rank takes its entries to begin after the last one: it finds no target at all.",
        {RANK_1: P / 2 - 1},
    ),
    Mistake(
        "target on both ranks",
        "That is what one process has. The second rank takes its entries to begin after the last "
        "one: it finds no target, and its softmax has the sum of both.",
        {RANK_1: P - 1},
    ),
    Mistake(
        "the other rank does nothing",
        "Rank 1 has a logit for that entry too, and its own exponential over the sum of all.",
        {RANK_1: 0.0},
    ),
    Mistake(
        "no one-hot",
        "That is the softmax alone. At the target's own logit, where a rank finds it, 1 is "
        "subtracted.",
        {DENSE: P, RANK_0: P / 2},
    ),
    Mistake(
        "the loss, not its gradient",
        "That is made from the loss, -log of the probability. Its gradient with respect to the "
        "*logit* is softmax minus one-hot.",
        {DENSE: log(P), RANK_0: log(P / 2)},
    ),
    Mistake(
        "the loss, not its gradient",
        "That is the derivative by the probability, or a loss. Asked is the one with respect to "
        "the *logit*: softmax minus one-hot.",
        {DENSE: -1 / P, RANK_0: -log(P / 2)},
    ),
    Mistake(
        "each rank's own softmax",
        "Rank 1 divides by the shared sum as well, and that is twice what it should be.",
        {RANK_1: P},
    ),
    Mistake(
        "sign",
        "The sign is turned: the gradient pushes the target's logit up, so it is negative there, "
        "and positive where only the softmax is.",
        {DENSE: 1 - P, RANK_0: 1 - P / 2, RANK_1: -P / 2},
    ),
    Mistake(
        "sign",
        "The softmax counts positive. At the target 1 is subtracted from it.",
        {DENSE: -P, RANK_0: -P / 2, RANK_1: -P},
    ),
)


def judge_log_two(given: Mapping) -> None:
    """Hold the numbers against what follows from n sums in the place of one."""
    compare(given, RIGHT, MISTAKES, apart=True)


LOG_TWO = Thought(
    name="log_two",
    title="Too high by exactly log 2",
    points=3,
    fields=FIELDS,
    judge=judge_log_two,
    when_right=(
        "Each of n ranks adds all exponentials, the target is found once: a loss too high by log n "
        "at every step, and gradients that push a target up harder than they push the others down. "
        "A constant in a loss curve is a count gone wrong; padding's error is another number, and "
        "changes as the model learns. A loss that knows its vocabulary can refuse such logits."
    ),
    hints=(
        "Write the loss as log S + m - l_y. With all logits on both ranks: which of S, m and l_y "
        "is another number than it should be?",
        "For padding, compare two sums of equal exponentials: over the rows, and over the entries.",
        "The gradient is softmax minus one-hot, on each rank by itself. By which sum is the "
        "softmax divided, and on which rank is the target in range?",
    ),
)
