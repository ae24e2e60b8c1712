"""`seven_by_five` of lesson 02: a weight that no number of ranks divides, cut both ways.

The numbers come from the cut rule and the ledger; misreadings use other cuts, sums or counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_classroom.judge.thought import Thought, held_against, named
from course_classroom.judge.words import Page
from course_lib.layout import cut
from course_lib.ledger import forms

B, H, F, RANKS, ITEM = 4, 7, 5, 3, 4  # X[4, 7] W[7, 5] on three ranks, float32: in the question
HELD = ("columns: W on rank 0", "columns: W on rank 2", "rows: W on rank 0", "rows: W on rank 2")
SUMMED = ("columns: all-reduced", "rows: all-reduced")
BYTES = ("columns: bytes", "rows: bytes")
FIELDS = HELD + SUMMED + BYTES

SAYS = Page(__file__, "seven_by_five")


def _held(
    by_columns: Sequence = cut(F, RANKS), by_rows: Sequence = cut(H, RANKS), a: int = H, b: int = F
) -> dict[str, float]:
    """Return the elements on ranks 0 and 2 of a matrix with `a` elements per column and `b` per
    row, given the length of f and the length of h on each rank."""
    counts = (a * by_columns[0], a * by_columns[-1], b * by_rows[0], b * by_rows[-1])
    return dict(zip(HELD, counts, strict=True))


def _costs(by_columns: float, by_rows: float) -> dict[str, float]:
    """Return the numbers of all-reduced elements for both cuts, and their bytes."""
    return _summed(by_columns, by_rows) | _bytes(RING * ITEM, by_columns, by_rows)


def _summed(by_columns: float, by_rows: float) -> dict[str, float]:
    return dict(zip(SUMMED, (by_columns, by_rows), strict=True))


def _bytes(times: float, by_columns: float = B * H, by_rows: float = B * F) -> dict[str, float]:
    return dict(zip(BYTES, (times * by_columns, times * by_rows), strict=True))


RING = forms.all_reduce(RANKS, RANKS) / RANKS  # the part of the all-reduced data that a rank sends
RIGHT = {**_held(), **_costs(B * H, B * F)}
WIDE, HIGH = cut(F, RANKS)[:1], cut(H, RANKS)[:1]  # rank 0's share, by columns and by rows
SWAPPED = dict(zip(HELD[2:] + HELD[:2], _held().values(), strict=True))
MISREADINGS = (  # of the cut, of the sum, of the messages
    ("the other direction", _costs(B * F, B * H)),
    ("rows and columns swapped", SWAPPED | _costs(B * F, B * H)),
    ("as even as possible", _held([2, 2, 1], [3, 2, 2])),
    ("the rest on the last rank", _held([1, 1, 3], [2, 2, 3])),
    ("padded", _held(WIDE, HIGH)),
    ("a third of everything", _held([F / RANKS], [H / RANKS])),
    ("the full weight", _held([F], [H])),
    ("only the length", _held(a=1, b=1)),
    ("weight's gradient counted", _costs(H * F, H * F)),
    ("both directions", _costs(B * F + B * H, B * F + B * H)),
    ("no partial sum in the backward", {SUMMED[0]: 0, BYTES[0]: 0}),
    ("no partial sum in the forward", {SUMMED[1]: 0, BYTES[1]: 0}),
    ("weight's gradient counted", _costs(H * WIDE[0], F * HIGH[0])),
    ("weight's gradient counted", _costs(B * H + H * F, B * F + H * F)),
    ("one rank's shard", _costs(B * WIDE[0], B * HIGH[0])),
    ("a third of everything", _costs(B * H / RANKS, B * F / RANKS)),
    ("counted twice", _summed(2 * B * H, 2 * B * F)),
    ("bytes, not elements", {name: ITEM * RIGHT[name] for name in HELD + SUMMED}),
    ("X or Y, not W", _held(a=B, b=B)),
    ("twice the tensor", _bytes(2 * ITEM)),
    ("chunks rounded up", _bytes(4 * ITEM, *(-(-size // RANKS) for size in (B * H, B * F)))),
    ("only one round", _bytes(RING / 2 * ITEM)),
    ("the tensor once", _bytes(ITEM)),
    ("all ranks together", _bytes(RING * RANKS * ITEM)),
    ("all ranks together", _bytes(RANKS * ITEM)),
    ("wrong number", _bytes(2 * RING * ITEM)),
    ("all ranks together", _summed(RANKS * B * H, RANKS * B * F)),
    ("elements, not bytes", _bytes(RING)),
)
SEVEN_BY_FIVE = Thought(
    fields=FIELDS, judge=held_against(RIGHT, named(SAYS, MISREADINGS), apart=True), **SAYS.about
)
