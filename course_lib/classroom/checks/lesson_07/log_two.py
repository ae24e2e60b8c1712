"""`log_two` of lesson 07: gathered logits handed to the sharded loss, in numbers.

Every rank then counts every entry: the sum is n times what it should be, the target is found once.
The right numbers follow from that, and each wrong idea from another count.
"""

from __future__ import annotations

from math import log, log2, log10

from course_lib.classroom.checks.thought import Mistake, Thought, held_against
from course_lib.classroom.checks.words import Words

WORDS, PADDED, LATER, P = 50_257, 51_200, 3.0, 0.3  # in the question
START, THEN, EIGHT = "at the start, logged", "later, logged", "eight ranks, too high by"
PADDING, ADDS_UP = "padding, too high by", "softmax of a rank adds up to"
DENSE, RANK_0, RANK_1 = "target, one process", "target, rank 0", "target, rank 1"
FIELDS = (START, THEN, EIGHT, PADDING, ADDS_UP, DENSE, RANK_0, RANK_1)

SAYS = Words("""
another logarithm #1: That logarithm is to the base 2. The loss has the natural one.
another logarithm #2: That logarithm is to the base 10. The loss has the natural one.
the loss times n: You have multiplied the loss. What is too large by the number of ranks is the sum
  of exponentials, and of that the loss is a logarithm.
nothing changes: That is what one process has. In the bug each rank adds *all* exponentials to the
  sum.
fewer words: That would be a loss over a rank's own entries alone. Here it is the other way round:
  each rank has all of them.
another number of ranks #1: That is what two ranks add. Every one of the eight counts all entries.
another number of ranks #2: One rank's count is right, and seven are too many: but what is added up
  is eight times one sum, and the loss a logarithm of that.
another number of ranks #3: That is a multiple of log 2. The eight ranks' sums are added before the
  logarithm, not their logarithms.
the loss itself: That is what is logged. Asked is by how much it is too high.
shrinks with the loss: You have made the error a share of the loss. What is added inside the
  logarithm as a factor is the same at the start and later.
the ratio itself #1: That is the ratio of the sums of exponentials, or by how much it is above 1.
  The loss is a logarithm of the sum.
the ratio itself #2: That is by how much the ratio of the sums is above 1. The loss is a logarithm:
  close to it here, and not the same.
the padding's own logarithm: That is the logarithm of the number of padded rows. Compare two sums:
  with them, and without.
a share of the rows: That is the padding's share of all rows. The loss is a logarithm of a sum:
  compare the sum with the padding to that without.
too low: By how much it is too *high* is asked: more exponentials in the sum, a higher loss.
zero logits cost nothing: A padded row takes part with an exponential of 1, like each of the entries
  at the start.
twice as much: The sum that is divided *by* is twice as large; each exponential of a rank is there
  once.
half of all: You have halved softmax and one-hot. The one-hot is set by the rank that finds the
  target, and knows nothing of a sum.
target on both ranks: The second rank takes its entries to begin after the last one: it finds no
  target, and what it has there is its softmax alone.
the other rank does nothing: Rank 1 has a logit for that entry too, and its own exponential over the
  sum of all.
no one-hot: That is the softmax alone. At the target's own logit, where a rank finds it, 1 is
  subtracted.
the loss, not its gradient: That is a loss, -log of the probability, or the derivative by the
  probability. The gradient with respect to the *logit* is softmax minus one-hot.
each rank's own softmax: Rank 1 divides by the shared sum as well, and that is twice what it should
  be.
sign #1: The sign is turned: the gradient pushes the target's logit up, so it is negative there, and
  positive where only the softmax is.
sign #2: The softmax counts positive. At the target 1 is subtracted from it.
""")


def _losses(ln=log, start: float = 2 * WORDS, more: float = 2, eight: float = 8) -> dict:
    """Count losses that are a logarithm of so many entries, and so many times too high in it."""
    return {START: ln(start), THEN: LATER + ln(more), EIGHT: ln(eight), PADDING: ln(PADDED / WORDS)}


RIGHT = {**_losses(), ADDS_UP: 1 / 2, DENSE: P - 1, RANK_0: P / 2 - 1, RANK_1: P / 2}
_IDEAS = (
    ("another logarithm #1", _losses(log2)),
    ("another logarithm #2", _losses(log10)),
    ("the loss times n", {START: 2 * log(WORDS), THEN: 2 * LATER, EIGHT: 8}),
    (
        "nothing changes",
        {START: log(WORDS), THEN: LATER, EIGHT: 0.0, ADDS_UP: 1.0, RANK_0: P - 1},
    ),
    ("fewer words", {START: log(WORDS / 2), THEN: LATER - log(2), EIGHT: -log(8)}),
    ("another number of ranks #1", {EIGHT: log(2)}),
    ("another number of ranks #2", {EIGHT: log(7)}),
    *(("another number of ranks #3", {EIGHT: many * log(2)}) for many in (4, 7, 8)),
    ("the loss itself", {EIGHT: log(8 * WORDS), PADDING: log(PADDED)}),
    ("shrinks with the loss", {THEN: LATER * log(2 * WORDS) / log(WORDS)}),
    ("the ratio itself #1", {THEN: LATER + 2, EIGHT: 8.0, PADDING: PADDED / WORDS}),
    ("the ratio itself #2", {EIGHT: 7.0, PADDING: PADDED / WORDS - 1}),
    ("the padding's own logarithm", {PADDING: log(PADDED - WORDS)}),
    ("a share of the rows", {PADDING: (PADDED - WORDS) / PADDED}),
    ("too low", {PADDING: -log(PADDED / WORDS)}),
    ("zero logits cost nothing", {PADDING: 0.0}),
    ("twice as much", {ADDS_UP: 2.0, RANK_0: 2 * P - 1, RANK_1: 2 * P}),
    ("half of all", {RANK_0: (P - 1) / 2, RANK_1: (P - 1) / 2}),
    *(("target on both ranks", {RANK_1: p - 1}) for p in (P / 2, P)),
    ("the other rank does nothing", {RANK_1: 0.0}),
    ("no one-hot", {DENSE: P, RANK_0: P / 2}),
    ("the loss, not its gradient", {DENSE: log(P), RANK_0: log(P / 2)}),
    ("the loss, not its gradient", {DENSE: -log(P), RANK_0: -log(P / 2)}),
    ("the loss, not its gradient", {DENSE: -1 / P}),
    ("each rank's own softmax", {RANK_1: P}),
    ("sign #1", {DENSE: 1 - P, RANK_0: 1 - P / 2, RANK_1: -P / 2}),
    ("sign #2", {DENSE: -P, RANK_0: -P / 2, RANK_1: -P}),
)
MISTAKES = tuple(Mistake(*SAYS.of(entry), values) for entry, values in _IDEAS)
LOG_TWO = Thought(
    name="log_two",
    title="Too high by exactly log 2",
    points=3,
    fields=FIELDS,
    judge=held_against(lambda: RIGHT, lambda: MISTAKES, apart=True),
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
