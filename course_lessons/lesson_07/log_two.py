"""`log_two` of lesson 07: the losses if gathered logits are passed to the sharded loss.

Every rank then counts every entry, so the sum is n times too large, but the target is found once.
The right numbers follow from that, and each wrong idea from a different count.
"""

from __future__ import annotations

from math import log, log2, log10

from course_classroom.judge.thought import Thought, held_against, named
from course_classroom.judge.words import Page

WORDS, PADDED, LATER, P = 50_257, 51_200, 3.0, 0.3  # in the question
START, THEN, EIGHT = "at the start, logged", "later, logged", "eight ranks, too high by"
PADDING, ADDS_UP = "padding, too high by", "softmax of a rank adds up to"
DENSE, RANK_0, RANK_1 = "target, one process", "target, rank 0", "target, rank 1"
FIELDS = (START, THEN, EIGHT, PADDING, ADDS_UP, DENSE, RANK_0, RANK_1)

SAYS = Page(__file__, "log_two")


def _losses(ln=log, start: float = 2 * WORDS, more: float = 2, eight: float = 8) -> dict:
    """Return losses that are, or are too high by, logarithms of these numbers of entries."""
    return {START: ln(start), THEN: LATER + ln(more), EIGHT: ln(eight), PADDING: ln(PADDED / WORDS)}


RIGHT = {**_losses(), ADDS_UP: 1 / 2, DENSE: P - 1, RANK_0: P / 2 - 1, RANK_1: P / 2}
_IDEAS = (
    ("wrong logarithm #1", _losses(log2)),
    ("wrong logarithm #2", _losses(log10)),
    ("the loss times n", {START: 2 * log(WORDS), THEN: 2 * LATER, EIGHT: 8}),
    ("nothing changes", {START: log(WORDS), THEN: LATER, EIGHT: 0.0, ADDS_UP: 1.0, RANK_0: P - 1}),
    ("one rank's entries", {START: log(WORDS / 2), THEN: LATER - log(2), EIGHT: -log(8)}),
    ("wrong number of ranks #1", {EIGHT: log(2)}),
    ("wrong number of ranks #2", {EIGHT: log(7)}),
    *(("wrong number of ranks #3", {EIGHT: many * log(2)}) for many in (4, 7, 8)),
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
MISTAKES = named(SAYS, _IDEAS)
LOG_TWO = Thought(fields=FIELDS, judge=held_against(RIGHT, MISTAKES, apart=True), **SAYS.about)
