"""Which rows of the fused q, k, v product a rank should hold, and which it has by each misreading.

A row is named by its place in [all q | all k | all v]; a piece of a real weight is read back into
such names by value. The findings of `shard_qkv` in lesson 05.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from course_lib.layout import heads, kv_heads, span
from course_lib.tensor_parallel.qkv_layout import joined_rows, shares

Rows = list[int]


class Case(NamedTuple):
    """A model's attention cut over n ranks; `layout` is "gpt2" or "llama"."""

    layout: str
    heads: int
    kv_heads: int
    size: int  # of a head
    n: int
    dtype: str = "float64"

    @property
    def hidden(self) -> int:
        return self.heads * self.size

    @property
    def rows(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.size

    @property
    def words(self) -> str:
        kv = "" if self.kv_heads == self.heads else f" and {self.kv_heads} key/value heads"
        name = {"gpt2": "GPT-2's layout", "llama": "Llama's layout"}[self.layout]
        return f"{name}, {self.heads} heads{kv} over {self.n} ranks"

    def of(self, part: str, wanted: list[int]) -> Rows:
        """The rows of these heads of "q", "k" or "v"."""
        first = {"q": 0, "k": self.heads, "v": self.heads + self.kv_heads}[part]
        return [(first + head) * self.size + i for head in wanted for i in range(self.size)]

    def told(self, row: int | None) -> str:
        """What a row is, in words."""
        if row is None:
            return "no row of the whole weight"
        head = row // self.size
        for part, count in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            if head < count:
                return f"row {row % self.size} of {part}'s head {head}"
            head -= count
        return "no row of the whole weight"


def right(case: Case, rank: int) -> Rows:
    """A rank's key/value heads, and the query heads that read them: q first, then k, then v."""
    share = shares(case.heads, case.kv_heads, case.n)[rank]
    spans = joined_rows(share, case.heads, case.kv_heads, case.size)
    return [row for span_ in spans for row in range(*span_)]


def _readers(case: Case, kv: list[int]) -> list[int]:
    each = case.heads // case.kv_heads
    return [each * head + i for head in kv for i in range(each)]


def _joined(case: Case, q: list[int], kv: list[int]) -> Rows:
    return case.of("q", q) + case.of("k", kv) + case.of("v", kv)


def _straight(case: Case, rank: int) -> Rows:
    return list(range(*span(case.rows, case.n, rank)))


def _every_nth(case: Case, rank: int) -> Rows:
    q, kv = (list(range(rank, count, case.n)) for count in (case.heads, case.kv_heads))
    return _joined(case, q, kv)


def _head_by_head(case: Case, rank: int) -> Rows:
    found: Rows = []
    for head in range(*kv_heads(case.kv_heads, case.n)[rank]):
        found += _joined(case, _readers(case, [head]), [head])
    return found


def _through_a_head(case: Case, rank: int) -> Rows:
    found: Rows = []
    for part, count in (("q", case.heads), ("k", case.kv_heads), ("v", case.kv_heads)):
        start, stop = span(count * case.size, case.n, rank)
        found += case.of(part, list(range(count)))[start:stop]
    return found


def _idle_rank(case: Case, rank: int) -> Rows:
    kv = list(range(*span(case.kv_heads, case.n, rank)))
    return _joined(case, _readers(case, kv), kv)


def _dropped(case: Case, rank: int) -> Rows:
    each = case.kv_heads // case.n
    kv = list(range(rank * each, (rank + 1) * each))
    return _joined(case, _readers(case, kv), kv)


def _evenly(case: Case, rank: int) -> list[int]:
    counts = heads(case.heads, case.n)
    return list(range(sum(counts[:rank]), sum(counts[: rank + 1])))


def _apart(case: Case, rank: int) -> Rows:
    return _joined(case, _evenly(case, rank), list(range(*kv_heads(case.kv_heads, case.n)[rank])))


def _like_q(case: Case, rank: int, queries: Callable[[Case, int], list[int]]) -> Rows:
    q = queries(case, rank)
    return _joined(case, q, [head for head in q if head < case.kv_heads])


def _of_its_kv(case: Case, rank: int) -> list[int]:
    return _readers(case, list(range(*kv_heads(case.kv_heads, case.n)[rank])))


def _kv_whole(case: Case, rank: int) -> Rows:
    return _joined(case, _of_its_kv(case, rank), list(range(case.kv_heads)))


# Each misreading: its name, what to say to it, and the rows that it gives a rank.
READINGS: tuple[tuple[str, str, Callable[[Case, int], Rows]], ...] = (
    (
        "nothing cut",
        "That is the whole weight, on every rank. A rank keeps the rows of its own heads.",
        lambda case, rank: list(range(case.rows)),
    ),
    (
        "straight across",
        "The fused weight is cut straight across, as if it were one matrix. It is three of them "
        "side by side: the first rank gets nothing but queries that way, the last one nothing but "
        "values. Cut each of the three, then join the pieces.",
        _straight,
    ),
    (
        "every n-th head",
        "Each rank takes every n-th head. Heads stay in order: the first ranks hold the first "
        "heads, as the rows of the output projection expect.",
        _every_nth,
    ),
    (
        "head by head",
        "The right rows, joined head by head. The product is split into all of this rank's q, "
        "then all of its k, then all of its v.",
        _head_by_head,
    ),
    (
        "through a head",
        "The rows of q, k and v are cut as evenly as rows go, which runs through the middle of a "
        "head. Cut by whole heads: count heads first, rows after.",
        _through_a_head,
    ),
    (
        "an idle rank",
        "Heads are handed out by ceiling division, which leaves a last rank with fewer than it "
        "could have, or none. They are spread evenly: counts differ by one at most.",
        _idle_rank,
    ),
    (
        "heads left over",
        "The same whole number of heads for each rank: those left over belong to no rank, or to "
        "the last ones. The first ranks take one more.",
        _dropped,
    ),
    (
        "q without its k and v",
        "The query heads are spread by themselves, the key/value heads by themselves, and on some "
        "rank a query no longer finds the key/value head that it reads. Place the key/value "
        "heads; the queries that read them follow.",
        _apart,
    ),
    (
        "k and v cut like q",
        "k and v are cut with the sizes of q. With grouped queries they have fewer heads, and so "
        "fewer rows: they need a cut of their own.",
        lambda case, rank: _like_q(case, rank, _of_its_kv),
    ),
    (
        "k and v cut like q",
        "k and v are cut with the sizes of q. With grouped queries they have fewer heads, and so "
        "fewer rows: they need a cut of their own.",
        lambda case, rank: _like_q(case, rank, _evenly),
    ),
    (
        "k and v whole",
        "q is cut and k and v are not. Each rank needs the key/value heads that its own queries "
        "read, and no others.",
        _kv_whole,
    ),
)


def others(case: Case, rank: int) -> list[tuple[str, str, Rows]]:
    """Misreadings that depend on more than one rank or on the order of the three parts."""
    found = []
    for other in range(case.n):
        if other != rank:
            found.append(
                (
                    "another rank's heads",
                    f"Those are the rows of rank {other}. Rank 0 holds the first heads.",
                    right(case, other),
                )
            )
    kv = list(range(*kv_heads(case.kv_heads, case.n)[rank]))
    q, k, v = case.of("q", _readers(case, kv)), case.of("k", kv), case.of("v", kv)
    for order in (q + v + k, k + q + v, k + v + q, v + q + k, v + k + q):
        found.append(
            (
                "parts in another order",
                "The right rows, but q, k and v do not stand in this order.",
                order,
            )
        )
    return found


def names(piece: Tensor, whole: Tensor) -> list[int | None]:
    """For each row (or number) of a piece, which of the whole it is; None where it is none."""
    places = {_key(row): number for number, row in enumerate(whole)}
    return [places.get(_key(row)) for row in piece]


def _key(row: Tensor) -> bytes:
    return row.detach().contiguous().numpy().tobytes()


def columns_of(case: Case, rank: int) -> slice:
    """What a rank would get of the dim h, were that the one that is cut."""
    start, stop = span(case.hidden, case.n, rank)
    return slice(start, stop)
