"""`seven_by_five` of lesson 02: a weight that no number of ranks divides, cut both ways.

What each rank holds, what is all-reduced, and what that costs, from the cut rule and the ledger's
forms; a misreading is another cut, another sum or another count.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.classroom.checks.thought import Mistake, Thought, held_against
from course_lib.classroom.checks.words import Words
from course_lib.layout import cut
from course_lib.ledger import forms

B, H, F, RANKS, ITEM = 4, 7, 5, 3, 4  # X[4, 7] W[7, 5] on three ranks, float32: in the question
HELD = ("columns: W on rank 0", "columns: W on rank 2", "rows: W on rank 0", "rows: W on rank 2")
SUMMED = ("columns: all-reduced", "rows: all-reduced")
BYTES = ("columns: bytes", "rows: bytes")
FIELDS = HELD + SUMMED + BYTES

SAYS = Words("""
the other direction: By columns Y is not a partial sum, by rows dX is not. The partial sum comes
  from the product that sums over the cut dim: find it for each cut.
rows and columns swapped: You have columns where rows are asked for, and rows for columns. By
  columns each rank holds some of the columns of W[h, f], all h elements of each.
as evenly as it goes: You have spread what is left over as evenly as it goes. The course cuts a dim
  as torch.chunk does: pieces of ⌈length/n⌉ until nothing is left, so the last rank is the one that
  gets less.
the rest on the last rank: You have rounded down and given the last rank all that is left over. The
  course rounds up: pieces of ⌈length/n⌉ until nothing is left.
padded: You have the same on every rank, as if the dim were filled up. A dim is not padded: the last
  rank holds what is left.
a third of everything: You have divided by three. A rank holds whole columns of W, or whole rows,
  and what it hands over has the full shape.
the whole weight: That is all of W. Each rank holds a part of it.
only the length: That is how many columns, or rows, a rank holds. Each column has h elements, each
  row f.
the weight's gradient owed: W's gradient is counted, or a rank's shard of it. It is a partial sum
  where each rank has other rows of X, that is, where b is cut. Here every rank has its own shard of
  dW, complete.
both directions: You have counted Y and dX for both cuts. In each, one of the two is a partial sum.
nothing owed backward: Forward is not all: go through the backward's products as well. One of them
  runs over f.
nothing owed forward: By rows each rank has multiplied with some of the rows of W alone. Which of
  the three products sums over them?
one rank's shard: That is one rank's shard of Y, or of X. A partial sum has the full shape on every
  rank: each element of it is still to be summed.
counted twice: That is twice the tensor. It is all-reduced once in a step, forward or backward.
bytes, not elements: Those are bytes. Elements are asked for here.
X or Y, not W: That is this rank's shard of Y, or of X. Asked for is how much of W it holds.
twice the tensor: That is twice the tensor: n steps in each of two rounds, or a full tensor to each
  of the others. On the ring a round has n−1 steps, and a step sends one chunk.
chunks rounded up: You have rounded the chunk up to whole elements. By the formula each rank sends
  2(n−1)/n of the tensor, whether that is a whole number or not.
half of the way: Those are the bytes of a reduce-scatter. Every rank needs the whole sum: an
  all-reduce has a second half.
the tensor once: Those are the bytes of the tensor itself. Of an all-reduce over n ranks each sends
  2(n−1)/n of it.
all ranks together: That is what all three ranks send, or hand over, together. Asked for is one
  rank's part: each hands over a tensor of the same size.
wrong number: That is twice what a rank sends. A float32 has 4 bytes; and what a rank receives is
  counted where it is sent.
numbers, not bytes: Those are elements. A float32 takes more than one byte.
""")


def _held(
    by_columns: Sequence = cut(F, RANKS), by_rows: Sequence = cut(H, RANKS), a: int = H, b: int = F
) -> dict[str, float]:
    """What ranks 0 and 2 hold of a matrix with `a` elements a column and `b` a row, where each
    rank's share of f, and of h, is so long."""
    counts = (a * by_columns[0], a * by_columns[-1], b * by_rows[0], b * by_rows[-1])
    return dict(zip(HELD, counts, strict=True))


def _costs(by_columns: float, by_rows: float) -> dict[str, float]:
    """So many elements all-reduced, and the bytes of that."""
    return _summed(by_columns, by_rows) | _bytes(RING * ITEM, by_columns, by_rows)


def _summed(by_columns: float, by_rows: float) -> dict[str, float]:
    return dict(zip(SUMMED, (by_columns, by_rows), strict=True))


def _bytes(times: float, by_columns: float = B * H, by_rows: float = B * F) -> dict[str, float]:
    return dict(zip(BYTES, (times * by_columns, times * by_rows), strict=True))


RING = forms.all_reduce(RANKS, RANKS) / RANKS  # of what is all-reduced, the part that a rank sends
RIGHT = {**_held(), **_costs(B * H, B * F)}


def _mistakes() -> tuple[Mistake, ...]:
    """What each misreading leads to: of the cut, of what is summed, of what is sent."""
    f, h, chunk = cut(F, RANKS), cut(H, RANKS), [-(-size // RANKS) for size in (B * H, B * F)]
    turned = _held().values()
    return tuple(
        Mistake(*SAYS.of(entry), values)
        for entry, values in (
            ("the other direction", _costs(B * F, B * H)),
            (
                "rows and columns swapped",
                dict(zip(HELD[2:] + HELD[:2], turned, strict=True)) | _costs(B * F, B * H),
            ),
            ("as evenly as it goes", _held(_balanced(F), _balanced(H))),
            ("the rest on the last rank", _held(_rounded_down(F), _rounded_down(H))),
            ("padded", _held(f[:1], h[:1])),
            ("a third of everything", _held([F / RANKS], [H / RANKS])),
            ("the whole weight", _held([F], [H])),
            ("only the length", _held(a=1, b=1)),
            ("the weight's gradient owed", _costs(H * F, H * F)),
            ("both directions", _costs(B * F + B * H, B * F + B * H)),
            ("nothing owed backward", {SUMMED[0]: 0, BYTES[0]: 0}),
            ("nothing owed forward", {SUMMED[1]: 0, BYTES[1]: 0}),
            ("the weight's gradient owed", _costs(H * f[0], F * h[0])),
            ("the weight's gradient owed", _costs(B * H + H * F, B * F + H * F)),
            ("one rank's shard", _costs(B * f[0], B * h[0])),
            ("a third of everything", _costs(B * H / RANKS, B * F / RANKS)),
            ("counted twice", _summed(2 * B * H, 2 * B * F)),
            ("bytes, not elements", {name: ITEM * RIGHT[name] for name in HELD + SUMMED}),
            ("X or Y, not W", _held(a=B, b=B)),
            ("twice the tensor", _bytes(2 * ITEM)),
            ("chunks rounded up", _bytes(4 * ITEM, *chunk)),
            ("half of the way", _bytes(RING / 2 * ITEM)),
            ("the tensor once", _bytes(ITEM)),
            ("all ranks together", _bytes(RING * RANKS * ITEM)),
            ("all ranks together", _bytes(RANKS * ITEM)),
            ("wrong number", _bytes(2 * RING * ITEM)),
            ("all ranks together", _summed(RANKS * B * H, RANKS * B * F)),
            ("numbers, not bytes", _bytes(RING)),
        )
    )


def _balanced(length: int) -> list[int]:
    return [length // RANKS + (rank < length % RANKS) for rank in range(RANKS)]


def _rounded_down(length: int) -> list[int]:
    piece = length // RANKS
    return [piece] * (RANKS - 1) + [length - piece * (RANKS - 1)]


SEVEN_BY_FIVE = Thought(
    name="seven_by_five",
    title="Seven by five on three ranks",
    points=2,
    fields=FIELDS,
    judge=held_against(lambda: RIGHT, _mistakes, apart=True),
    when_right=(
        "The ranks' shares need not be equal, as long as all ranks cut by one rule. And what is "
        "all-reduced does not depend on W: by columns as many elements as X has, by rows as many "
        "as Y."
    ),
    hints=(
        "Cut first the dim, then count: five columns over three ranks, each as many as ⌈5/3⌉ until "
        "nothing is left. How many elements has one column?",
        "By columns, three products: Y sums over h, dX over f, dW over b. Which of these dims is "
        "cut? The result of that product is a partial sum: count its elements. By rows the same.",
        "That partial sum is all-reduced over three ranks; of its bytes each rank sends 2(n−1)/n.",
    ),
)
