"""`seven_by_five` of lesson 02: a weight that no number of ranks divides, cut both ways.

What each rank holds, what is all-reduced, and what that costs, from the cut rule and the ledger's
forms; a misreading is another cut, another sum or another count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.classroom.checks.thought import Mistake, Thought, compare
from course_lib.layout import cut
from course_lib.ledger import forms

B, H, F, RANKS, ITEM = 4, 7, 5, 3, 4  # X[4, 7] W[7, 5] on three ranks, float32: in the question
HELD = ("columns: W on rank 0", "columns: W on rank 2", "rows: W on rank 0", "rows: W on rank 2")
SUMMED = ("columns: all-reduced", "rows: all-reduced")
BYTES = ("columns: bytes", "rows: bytes")
FIELDS = HELD + SUMMED + BYTES


def _held(by_columns: Sequence[int], by_rows: Sequence[int]) -> dict[str, float]:
    """Elements of W on ranks 0 and 2, where each rank's share of f, and of h, is so long."""
    return _shards(H, F, by_columns, by_rows)


def _shards(
    a: int, b: int, by_columns: Sequence = cut(F, RANKS), by_rows: Sequence = cut(H, RANKS)
) -> dict[str, float]:
    """What ranks 0 and 2 hold of a matrix with `a` elements a column, and `b` a row."""
    counts = (a * by_columns[0], a * by_columns[-1], b * by_rows[0], b * by_rows[-1])
    return dict(zip(HELD, counts, strict=True))


def _costs(by_columns: float, by_rows: float, times: float) -> dict[str, float]:
    """So many elements all-reduced, and that many bytes times a factor."""
    summed = (by_columns, by_rows)
    sent = [times * elements * ITEM for elements in summed]
    return dict(zip(SUMMED + BYTES, (*summed, *sent), strict=True))


def _bytes(times: float, item: int = ITEM) -> dict[str, float]:
    return dict(zip(BYTES, (times * B * H * item, times * B * F * item), strict=True))


RING = forms.all_reduce(RANKS, RANKS) / RANKS  # of what is all-reduced, the part that a rank sends
RIGHT = {**_held(cut(F, RANKS), cut(H, RANKS)), **_costs(B * H, B * F, RING)}


def judge_seven(given: Mapping) -> None:
    """Hold the numbers against the cut rule and the forms, and against each misreading."""
    compare(given, RIGHT, _mistakes(), apart=True)


def _mistakes() -> tuple[Mistake, ...]:
    swapped = _held(cut(F, RANKS), cut(H, RANKS))
    return (
        Mistake(
            "the other direction",
            "By columns Y is not a partial sum, by rows dX is not. The partial sum comes from the "
            "product that sums over the cut dim: find it for each cut.",
            _costs(B * F, B * H, RING),
        ),
        Mistake(
            "rows and columns swapped",
            "You have columns where rows are asked for, and rows for columns. By columns each rank "
            "holds some of the columns of W[h, f], all h elements of each.",
            {
                **dict(zip(HELD, [swapped[name] for name in HELD[2:] + HELD[:2]], strict=True)),
                **_costs(B * F, B * H, RING),
            },
        ),
        Mistake(
            "as evenly as it goes",
            "You have spread what is left over as evenly as it goes. The course cuts a dim as "
            "torch.chunk does: pieces of ⌈length/n⌉ until nothing is left, so the last rank is the "
            "one that gets less.",
            _held(_balanced(F), _balanced(H)),
        ),
        Mistake(
            "the rest on the last rank",
            "You have rounded down and given the last rank all that is left over. The course "
            "rounds up: pieces of ⌈length/n⌉ until nothing is left.",
            _held(_rounded_down(F), _rounded_down(H)),
        ),
        Mistake(
            "padded",
            "You have the same on every rank, as if the dim were filled up. A dim is not padded: "
            "the last rank holds what is left.",
            _held([-(-F // RANKS)] * RANKS, [-(-H // RANKS)] * RANKS),
        ),
        Mistake(
            "a third of everything",
            "You have divided by three. A rank holds whole columns, or whole rows.",
            _held([F / RANKS] * RANKS, [H / RANKS] * RANKS),
        ),
        Mistake(
            "the whole weight",
            "That is all of W. Each rank holds a part of it.",
            _held([F] * RANKS, [H] * RANKS),
        ),
        Mistake(
            "only the length",
            "That is how many columns, or rows, a rank holds. Each column has h elements, each row "
            "f.",
            _shards(1, 1),
        ),
        Mistake(
            "the weight's gradient owed",
            "That is the size of W's gradient. It is a partial sum where each rank has other "
            "rows of X, that is, where b is cut. Here every rank has its own shard of dW, "
            "complete.",
            _costs(H * F, H * F, RING),
        ),
        Mistake(
            "both directions",
            "You have counted Y and dX for both cuts. In each, one of the two is a partial sum.",
            _costs(B * F + B * H, B * F + B * H, RING),
        ),
        Mistake(
            "nothing owed backward",
            "Forward is not all: go through the backward's products as well. One of them runs over "
            "f.",
            {SUMMED[0]: 0, BYTES[0]: 0},
        ),
        Mistake(
            "nothing owed forward",
            "By rows each rank has multiplied with some of the rows of W alone. Which of the three "
            "products sums over them?",
            {SUMMED[1]: 0, BYTES[1]: 0},
        ),
        *(
            Mistake(
                "the weight's gradient owed",
                "That is what a rank holds of W, or that beside what is to be summed. No gradient "
                "of W is a partial sum here: every rank has its own shard of dW, complete.",
                _costs(by_columns, by_rows, RING),
            )
            for by_columns, by_rows in (
                (H * cut(F, RANKS)[0], F * cut(H, RANKS)[0]),
                (B * H + H * F, B * F + H * F),
            )
        ),
        Mistake(
            "one rank's shard",
            "That is one rank's shard of Y, or of X. A partial sum has the full shape on every "
            "rank: each element of it is still to be summed.",
            _costs(B * cut(F, RANKS)[0], B * cut(H, RANKS)[0], RING),
        ),
        Mistake(
            "a third of everything",
            "You have divided by three. Each rank hands over a tensor of the full shape.",
            _costs(B * H / RANKS, B * F / RANKS, RING),
        ),
        Mistake(
            "counted twice",
            "That is twice the tensor. It is all-reduced once in a step, forward or backward.",
            dict(zip(SUMMED, (2 * B * H, 2 * B * F), strict=True)),
        ),
        Mistake(
            "bytes, not elements",
            "Those are bytes. Elements are asked for here.",
            {name: ITEM * RIGHT[name] for name in HELD + SUMMED},
        ),
        Mistake(
            "X or Y, not W",
            "That is this rank's shard of Y, or of X. Asked for is how much of W it holds.",
            _shards(B, B),
        ),
        Mistake(
            "twice the tensor",
            "That is twice the tensor: n steps in each of two rounds, or a full tensor to each of "
            "the others. On the ring a round has n−1 steps, and a step sends one chunk.",
            _bytes(2),
        ),
        Mistake(
            "chunks rounded up",
            "You have rounded the chunk up to whole elements. By the formula each rank sends "
            "2(n−1)/n of the tensor, whether that is a whole number or not.",
            dict(
                zip(BYTES, (4 * ITEM * -(-size // RANKS) for size in (B * H, B * F)), strict=True)
            ),
        ),
        Mistake(
            "half of the way",
            "Those are the bytes of a reduce-scatter. Every rank needs the whole sum: an "
            "all-reduce has a second half.",
            _bytes(RING / 2),
        ),
        Mistake(
            "the tensor once",
            "Those are the bytes of the tensor itself. Of an all-reduce over n ranks each sends "
            "2(n−1)/n of it.",
            _bytes(1),
        ),
        Mistake(
            "all ranks together",
            "That is what all three ranks send, or hand over, together. Asked for is one rank's "
            "part.",
            _bytes(RING * RANKS),
        ),
        Mistake(
            "all ranks together",
            "Those are the bytes of the three ranks' tensors. Asked for is what one rank sends.",
            _bytes(RANKS),
        ),
        Mistake(
            "wrong number",
            "That is twice what a rank sends. A float32 has 4 bytes; and what a rank receives is "
            "counted where it is sent.",
            _bytes(2 * RING),
        ),
        Mistake(
            "all ranks together",
            "That counts the tensor on each of the three ranks. Each hands over a tensor of that "
            "size: count the elements of one.",
            dict(zip(SUMMED, (RANKS * B * H, RANKS * B * F), strict=True)),
        ),
        Mistake(
            "numbers, not bytes",
            "Those are elements. A float32 takes more than one byte.",
            _bytes(RING, 1),
        ),
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
    judge=judge_seven,
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
